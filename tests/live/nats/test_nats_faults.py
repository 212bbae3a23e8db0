"""Failures under a publisher in full flight: the server dies, stops or stands still; the way to it is cut or silent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import AttachedBridge, NatsBridge, NatsSettings
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.waiting import eventually
from nats.aio.client import Client

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.client_closing import close_abandoned
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

MESSAGE: dict[str, Any] = {"ack_mode": "message"}
BATCH: dict[str, Any] = {"ack_mode": "batch"}


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"], allow_batched=True)
        yield admin


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[Proxy]:
    with Proxy(nats_server.url) as proxy:
        yield proxy


def in_full_flight(driver: Driver, *topics: str) -> int:
    """So many messages are put; some are acknowledged, and more than the window takes are not even sent."""
    each = 1_000
    for _ in range(4):
        driver.put(list(topics), each)
    eventually(lambda: driver.counters.acked > each // 2, "some are acknowledged")
    return 4 * each


def killed(server: NatsServer) -> None:
    server.kill()
    server.restart()


@pytest.mark.own_server
@pytest.mark.parametrize(
    ("end", "mode"),
    [(killed, MESSAGE), (killed, BATCH), (NatsServer.restart, BATCH)],
    ids=["killed", "killed, batch", "stopped"],
)
def test_a_server_that_comes_back_has_lost_and_doubled_nothing(
    nats_server: NatsServer, admin: Admin, mode: dict[str, Any], end: Callable[[NatsServer], object]
) -> None:
    with Driver(nats_server.url, **mode) as driver:
        n = in_full_flight(driver, "s.a", "s.b")
        end(nats_server)
        driver.drain()
        assert driver.events() == {"acked": n}, driver.reasons[:3]
        driver.conserved(admin)
    fresh_message_gets_through(nats_server.url, "s.new", **mode)


def test_a_cut_connection_loses_and_doubles_nothing(admin: Admin, proxy: Proxy) -> None:
    with Driver(proxy.url, **BATCH) as driver:
        n = in_full_flight(driver, "s.a", "s.b")
        proxy.cut()
        driver.drain()
        assert driver.events() == {"acked": n}, driver.reasons[:3]
        driver.conserved(admin)
    fresh_message_gets_through(proxy.url, "s.new", **BATCH)


def test_a_cut_in_batch_mode_is_resolved_without_ids(admin: Admin, proxy: Proxy) -> None:
    """The server still knows the batch and says which prefix it stored: nothing is double although ids are off."""
    with Driver(proxy.url, dedup=False, **BATCH) as driver:
        n = in_full_flight(driver, "s.a")
        proxy.cut()
        driver.drain()
        assert driver.events() == {"acked": n}, driver.reasons[:3]
        driver.conserved(admin)


def test_a_cut_in_message_mode_without_ids_is_owned_up_to(admin: Admin, proxy: Proxy) -> None:
    with Driver(proxy.url, dedup=False, resend_uncertain=False, wait_timeout=1.0, **MESSAGE) as driver:
        in_full_flight(driver, "s.a")
        proxy.cut()
        driver.drain()
        assert set(driver.events()) <= {"acked", "timeout"}
        driver.conserved(admin)


@pytest.mark.parametrize("mode", [MESSAGE, BATCH], ids=["message", "batch"])
def test_a_server_that_takes_smaller_messages_from_now_on_refuses_the_large_ones(
    tmp_path: Path, mode: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It tells only who connects, and says why it closes the connection of who sends one: others that were under way go
    again."""
    with NatsServer(tmp_path / "nats") as server, Admin(server.url) as admin:
        admin.create_stream("S", ["s.>"], allow_batched=True)
        with Driver(server.url, **mode) as driver:
            driver.begin(["s.a"], 1)
            with (server.folder / "nats-server.conf").open("a") as config:
                config.write("max_payload: 1000\n")
            os.kill(server.pid, signal.SIGHUP)
            eventually(lambda: server.ask("varz")["max_payload"] == 1000, "the server has read it")
            for size in (100, 5_000, 100, 5_000):
                driver.put(["s.a"], 50, size=size)
            driver.drain()
            assert driver.events() == {"acked": 101, "completed_exceptionally": 100}, driver.reasons[:3]
            assert "the server takes 1000" in driver.reasons[0]
            assert "the connection to NATS was lost: Maximum Payload Violation" in caplog.text
            driver.conserved(admin)


@pytest.mark.own_server
def test_a_frozen_server_is_outwaited_and_late_acks_are_counted(nats_server: NatsServer, admin: Admin) -> None:
    with Driver(nats_server.url, wait_timeout=0.5, **BATCH) as driver:
        driver.begin(["s.a"], 100)
        nats_server.pause()
        driver.put(["s.a"], 1_400, size=1000)
        eventually(lambda: driver.counters.resends > 0, "time-outs run while the server says nothing")
        nats_server.resume()
        driver.drain()
        assert driver.events() == {"acked": 1_500}, driver.reasons[:3]
        driver.conserved(admin)


@pytest.mark.own_server
def test_new_topics_are_not_looked_up_while_the_server_is_frozen(nats_server: NatsServer, admin: Admin) -> None:
    bridge = NatsBridge(NatsSettings((nats_server.url,), stream="S", connect_timeout=1.0))
    bridge.open()
    with contextlib.closing(bridge):
        bridge.prepare(MessageBatch.of(["s.a"], [b""]))
        nats_server.pause()
        with pytest.raises(Unavailable):
            bridge.prepare(MessageBatch.of(["s.b"], [b""]))
        nats_server.resume()


@pytest.mark.own_server
@pytest.mark.parametrize("mode", [MESSAGE, pytest.param(BATCH, marks=pytest.mark.thorough)], ids=["message", "batch"])
def test_a_peer_that_fell_silent_is_timed_out_and_close_returns(
    nats_server: NatsServer, admin: Admin, proxy: Proxy, mode: dict[str, Any]
) -> None:
    """Nothing is closed and nothing comes: more is put than the kernel's buffers take, and nobody hangs."""
    with Driver(proxy.url, wait_timeout=0.3, deadline=1.5, **mode) as driver:
        driver.begin(["s.a"], 100)
        proxy.silence()
        driver.put(["s.a"], 1000, size=20_000)
        with contextlib.suppress(Exception):  # nothing was acknowledged for the whole deadline: it may say so
            driver.drain()
        driver.bridge.close()
        assert len(driver.outcomes) == 1_100
        assert driver.events()["acked"] == 100
        proxy.speak()
    POOL.clear()
    eventually(lambda: nats_server.ask("varz")["connections"] == 1, "the server has read what was under way")
    driver.conserved(admin)
    fresh_message_gets_through(proxy.url, "s.new", **mode)


def test_a_stream_that_is_deleted_is_no_silence(nats_server: NatsServer, admin: Admin) -> None:
    with Driver(nats_server.url, wait_timeout=60.0, deadline=2.0) as driver:
        driver.begin(["s.a"], 100)
        assert admin.api("STREAM.DELETE.S")["success"]
        driver.put(["s.a"], 100)
        driver.drain()
        assert driver.events() == {"acked": 100, "completed_exceptionally": 100}
        assert "NO_RESPONDERS" in driver.reasons[0]


def test_a_users_own_connection_is_used_again_after_a_cut(admin: Admin, proxy: Proxy) -> None:
    rows = MessageBatch.of(["s.a"] * 100, [b"x"] * 100)

    def work(bridge: NatsBridge) -> None:
        bridge.open()
        assert len(publish(bridge, rows).sequence) == 100
        proxy.cut()
        kinds: list[str] = []
        while len(kinds) < 2:
            kinds += [e.kind.value for e in eventually(lambda: bridge.poll(0.1).events, "it is lost, and found")]
        assert kinds == ["disconnected", "reconnected"]
        assert len(publish(bridge, rows).sequence) == 100
        bridge.close()

    async def main() -> None:
        client = Client()

        async def quiet(_: Exception) -> None:
            """The cut is what this is about."""
            close_abandoned(client)

        options: dict[str, Any] = {"reconnect_time_wait": 0.05, "error_cb": quiet}
        await client.connect(proxy.url, **options)
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(work, AttachedBridge.attach(client.jetstream(), client=client, loop=loop, dedup=False))
        await client.close()

    asyncio.run(main())


def test_auto_goes_on_in_message_mode_when_the_stream_stops_allowing_fast_ingest(
    admin: Admin, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "mama_spark"), Driver(nats_server.url, dedup=False) as driver:
        driver.begin(["s.a"], 100)
        assert driver.bridge.mode == "batch"
        admin.update_stream("S", allow_batched=False)
        for _ in range(3):
            driver.put(["s.a"], 1_000)
        driver.drain()
        assert driver.bridge.mode == "message"
        assert driver.events() == {"acked": 3_100}, driver.reasons[:3]
        driver.conserved(admin)
    assert "does not allow fast ingest" in caplog.text


@pytest.mark.parametrize("asked", [BATCH, {"ordered": True}], ids=["batch", "order"])
def test_what_only_fast_ingest_can_do_fails_with_the_reason_when_it_is_off(
    admin: Admin, nats_server: NatsServer, asked: dict[str, Any]
) -> None:
    with Driver(nats_server.url, **asked) as driver:
        driver.begin(["s.a"], 100)
        ingest = driver.bridge._fast_ingest
        assert ingest is not None
        eventually(lambda: not ingest.busy, "the batch ended")
        admin.update_stream("S", allow_batched=False)
        driver.put(["s.a"], 100)
        driver.drain()
        assert driver.events() == {"acked": 100, "completed_exceptionally": 100}
        assert "allow_batched" in driver.reasons[0]
        driver.conserved(admin)


@pytest.mark.own_server
def test_order_is_kept_in_each_of_two_streams_over_a_kill(admin: Admin, nats_server: NatsServer) -> None:
    admin.create_stream("T", ["t.>"], allow_batched=True)
    with Driver(nats_server.url, ordered=True, **BATCH) as driver:
        assert driver.bridge.capabilities.ordered
        n = in_full_flight(driver, "s.a", "t.a", "t.b")
        killed(nats_server)
        driver.drain()
        assert driver.events() == {"acked": n}, driver.reasons[:3]
        for stream in ("S", "T"):
            driver.in_order(admin, stream)
        stored = [m.payload for name in ("S", "T") for m in admin.messages(name)]
        assert sorted(stored) == sorted(o.payload for o in driver.outcomes), "each once"


@pytest.mark.parametrize(("mode", "outcome"), [("none", "published"), ("message", "acked"), ("batch", "acked")])
def test_all_arrives_over_a_slow_way(nats_server: NatsServer, admin: Admin, mode: str, outcome: str) -> None:
    """Without acknowledgements the publisher ends long before that."""
    with Proxy(nats_server.url) as proxy:
        with Driver(proxy.url, ack_mode=mode) as driver:
            driver.put(["s.a"], 1)
            eventually(lambda: driver.outcomes, "it is connected")
            proxy.slow(0.02)
            driver.put(["s.a"], 60, 100_000)
            driver.drain()
            assert driver.events() == {outcome: 61}
        assert len(admin.messages("S")) == 61
