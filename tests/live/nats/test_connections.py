"""Connections: leased, kept warm, given up; servers: started, checked, gone with their owner."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import nats
import pytest
from mama_spark.contracts.bridge import EventKind
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import AttachedBridge, NatsBridge, NatsSettings
from mama_spark.nats.commands import serve
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin


@pytest.fixture
def broker(nats_server: NatsServer) -> NatsServer:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"], allow_batched=True)
    return nats_server


def connections(server: NatsServer) -> int:
    return int(server.ask("varz")["total_connections"])


def publish_one(url: str, **options: Any) -> None:
    bridge = NatsBridge(NatsSettings((url,), **options))
    bridge.open()
    assert not publish(bridge, MessageBatch.of(["s.a"], [b"x"])).error
    bridge.close()


@pytest.mark.own_server
def test_micro_batches_share_a_connection_and_other_options_and_forks_have_their_own(broker: NatsServer) -> None:
    before = connections(broker)
    for _ in range(5):
        publish_one(broker.url)
    assert connections(broker) == before + 1
    publish_one(broker.url, name="somebody-else")
    assert connections(broker) == before + 2
    fork = get_context("fork").Process(target=publish_one, args=(broker.url,))
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0
    publish_one(broker.url)
    assert connections(broker) == before + 3
    broker.kill()  # one that died while it was idle is not given out
    broker.restart()
    publish_one(broker.url)


def test_a_client_closed_for_good_is_an_event(broker: NatsServer) -> None:
    """Only who has it can close it; a connection of our own connects again."""

    def work(bridge: AttachedBridge, close: Callable[[], object]) -> set[EventKind]:
        bridge.open()
        close()
        events = eventually(lambda: bridge.poll(60).events, "it is told")
        bridge.close()
        return {event.kind for event in [*events, *bridge.poll(0).events]}

    async def main() -> set[EventKind]:
        client, loop = await nats.connect(broker.url), asyncio.get_running_loop()
        bridge = AttachedBridge.attach(client.jetstream(), client=client, loop=loop)
        close = lambda: asyncio.run_coroutine_threadsafe(client.close(), loop).result(60)  # noqa: E731
        return await asyncio.to_thread(work, bridge, close)

    assert EventKind.CLOSED in asyncio.run(main())
    publish_one(broker.url)


def test_a_users_own_connection_is_used_and_left_as_it_was(broker: NatsServer) -> None:
    """Its callbacks, too. Who names client and loop needs a context only to be told why nothing is acknowledged."""

    async def quiet(_: Exception | None = None) -> None: ...

    async def main() -> tuple[int, bool]:
        theirs = {"error_cb": quiet, "disconnected_cb": quiet, "reconnected_cb": quiet, "closed_cb": quiet}
        client = await nats.connect(broker.url, **theirs)
        js = client.jetstream()
        loop = asyncio.get_running_loop()
        on_loop = AttachedBridge.attach(js, client=client, dedup=False)
        on_loop.open()  # on the client's own loop: may not block

        def work(bridge: NatsBridge) -> int:
            return len(publish(bridge, MessageBatch.of(["s.a"] * 300, [b"x"] * 300)).sequence)

        acked = await asyncio.to_thread(work, on_loop)
        on_loop.close()

        def elsewhere() -> int:
            bridge = AttachedBridge.attach(object(), client=client, loop=loop, dedup=False)
            bridge.open()
            n = work(bridge)
            bridge.close()
            return n

        acked += await asyncio.to_thread(elsewhere)
        assert all(getattr(client, f"_{name}") is quiet for name in theirs)
        ack = await js.publish("s.mine", b"still works")
        await client.close()
        return acked, ack.seq == 601

    assert asyncio.run(main()) == (600, True)


def test_serve_says_ready_serves_and_ends(tmp_path: Path) -> None:
    said: list[str] = []
    stop = threading.Event()
    thread = threading.Thread(target=serve.serve, args=(0, tmp_path), kwargs={"say": said.append, "stop": stop})
    thread.start()
    eventually(lambda: said, "it is ready")
    url = said[0].split()[1]
    with Admin(url) as admin:
        assert admin.info(serve.DEMO)["config"]["allow_batched"]
        bridge = NatsBridge(NatsSettings((url,)))
        bridge.open()
        assert not publish(bridge, MessageBatch.of(["flights.JFK.AA", "demo.x"], [b"1", b"2"])).error
        bridge.close()
    POOL.clear()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_serve_that_is_told_to_end_leaves_no_process_behind() -> None:
    """Of Ctrl-C, ``tests/unit/cli/commands/test_cli.py`` says the same."""
    with subprocess.Popen(
        [sys.executable, "-m", "mama_spark.cli", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[1].rsplit(":", 1)[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    eventually(lambda: not listening(port), "the port is free")


def test_a_server_ends_with_the_process_that_started_it() -> None:
    ours, theirs = get_context("fork").Pipe()

    def serve_forever() -> None:
        with NatsServer() as server:
            theirs.send(server.port)
            signal.pause()

    process = get_context("fork").Process(target=serve_forever)
    process.start()
    port = ours.recv()
    assert listening(port)
    process.kill()
    process.join(60)
    eventually(lambda: not listening(port), "the server is gone, too")


@pytest.mark.own_server
def test_a_server_that_is_started_again_waits_for_its_port(broker: NatsServer, tmp_path: Path) -> None:
    """While it is down its port is anybody's: every connection that others open may be given it for a moment."""
    broker.kill()
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", broker.port)):
            with pytest.raises(Unavailable, match="address already in use"):
                NatsServer(tmp_path / "other", port=broker.port).start()
            starting = pool.submit(broker.start)
            eventually(lambda: b"address already in use" in broker.log.read_bytes(), "it has tried")
        starting.result(60)
    publish_one(broker.url)


@pytest.mark.own_server
def test_a_paused_server_stands_still_at_once(nats_server: NatsServer) -> None:
    for _ in range(3):
        nats_server.pause()
        tasks = Path(f"/proc/{nats_server.pid}/task").glob("*/stat")
        assert {task.read_text().rpartition(")")[2].split()[0] for task in tasks} == {"T"}
        nats_server.resume()
        eventually(lambda: listening_says(nats_server.port), "it goes on")


def listening_says(port: int) -> bool:
    """The server greets, so that it runs."""
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        return s.recv(4) == b"INFO"


def listening(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
