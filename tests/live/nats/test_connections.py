"""Connections: leased, kept warm, given up; servers: started, checked, gone with their owner."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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
from nats.aio.client import Client

from tests.support.nats.client_closing import close_abandoned
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy


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


def test_a_users_own_connection_is_used_over_a_cut_and_left_as_it_was_and_its_end_is_told(broker: NatsServer) -> None:
    """Its callbacks, too. Who names client and loop needs a context only to be told why nothing is acknowledged."""
    rows, client, kinds = MessageBatch.of(["s.a"] * 300, [b"x"] * 300), Client(), list[EventKind]()

    async def quiet() -> None: ...

    async def failed(_: Exception) -> None:
        close_abandoned(client)

    theirs: dict[str, Any] = dict.fromkeys(("disconnected_cb", "reconnected_cb", "closed_cb"), quiet)
    theirs["error_cb"] = failed
    soon: Any = 0.05

    def work(on_loop: AttachedBridge, loop: asyncio.AbstractEventLoop) -> None:
        def tells(kind: EventKind) -> None:
            while kind not in kinds:
                kinds.extend(event.kind for event in bridge.poll(0.1).events)

        assert len(publish(on_loop, rows).sequence) == 300
        on_loop.close()
        bridge = AttachedBridge.attach(object(), client=client, loop=loop, dedup=False)
        bridge.open()
        proxy.cut()
        tells(EventKind.RECONNECTED)
        assert kinds == [EventKind.DISCONNECTED, EventKind.RECONNECTED]
        assert len(publish(bridge, rows).sequence) == 300
        assert all(getattr(client, f"_{name}") is callback for name, callback in theirs.items())
        ours = asyncio.run_coroutine_threadsafe(client.jetstream().publish("s.mine", b"still works"), loop)
        assert ours.result(60).seq == 601
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(60)
        tells(EventKind.CLOSED)
        bridge.close()

    async def main() -> None:
        await client.connect(proxy.url, reconnect_time_wait=soon, **theirs)
        on_loop = AttachedBridge.attach(client.jetstream(), client=client, dedup=False)
        on_loop.open()  # on the client's own loop: may not block
        await asyncio.to_thread(work, on_loop, asyncio.get_running_loop())

    with Proxy(broker.url) as proxy:
        asyncio.run(main())


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


def listening(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
