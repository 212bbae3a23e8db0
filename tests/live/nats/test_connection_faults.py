"""The way to the server breaks while the server stays up: cut, silent, or with other rules behind it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mama_spark.bridges.nats import NatsBridge
from mama_spark.bridges.nats.connection.nats_py_compat import close_abandoned
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.message import MessageBatch
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.waiting import eventually
from nats.aio.client import Client

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

MESSAGE: dict[str, Any] = {"ack_mode": "message"}
PUBLIC: dict[str, Any] = {"ack_mode": "message", "fast": False}
BATCH: dict[str, Any] = {"ack_mode": "batch"}
MODES = pytest.mark.parametrize("mode", [MESSAGE, PUBLIC, BATCH], ids=["message", "public calls", "batch"])


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"], allow_batched=True)
        yield admin


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[Proxy]:
    with Proxy(nats_server.url) as proxy:
        yield proxy


def acked_past(driver: Driver, n: int) -> None:
    eventually(lambda: driver.counters.acked > n, f"more than {n} are acknowledged")


@MODES
def test_a_cut_connection_loses_and_doubles_nothing(admin: Admin, proxy: Proxy, mode: dict[str, Any]) -> None:
    n = 300 if mode is PUBLIC else 1500
    with Driver(proxy.url, **mode) as driver:
        for turn in range(1, 4):
            for _ in range(3):
                driver.put(["s.a", "s.b"], n)
            acked_past(driver, 3 * n * turn - 2 * n)
            proxy.cut()
        driver.drain()
        assert driver.events() == {"acked": 9 * n}, driver.reasons[:3]
        driver.conserved(admin)
    fresh_message_gets_through(proxy.url, "s.new", **mode)


def test_a_cut_in_batch_mode_is_resolved_without_ids(admin: Admin, proxy: Proxy) -> None:
    """The server still knows the batch and says which prefix it stored: nothing is double although ids are off."""
    with Driver(proxy.url, dedup=False, ack_mode="batch") as driver:
        for turn in range(1, 4):
            for _ in range(3):
                driver.put(["s.a"], 2000)
            acked_past(driver, 6000 * turn - 4000)
            proxy.cut()
        driver.drain()
        assert driver.events() == {"acked": 18_000}, driver.reasons[:3]
        driver.conserved(admin)


def test_a_cut_in_message_mode_without_ids_is_owned_up_to(admin: Admin, proxy: Proxy) -> None:
    with Driver(proxy.url, dedup=False, resend_uncertain=False, wait_timeout=1.0, **MESSAGE) as driver:
        for _ in range(5):
            driver.put(["s.a"], 2000)
        eventually(lambda: driver.counters.acked > 2000, "some are acknowledged")
        proxy.cut()
        driver.drain()
        assert set(driver.events()) <= {"acked", "timeout"}
        driver.conserved(admin)


@MODES
def test_a_peer_that_fell_silent_is_timed_out_and_close_returns(
    admin: Admin, proxy: Proxy, mode: dict[str, Any]
) -> None:
    """Nothing is closed and nothing comes: more is put than the kernel's buffers take, and nobody hangs."""
    with Driver(proxy.url, wait_timeout=0.3, deadline=1.5, **mode) as driver:
        driver.begin(["s.a"], 500)
        proxy.silence()
        driver.put(["s.a"], 1000, size=20_000)
        with ThreadPoolExecutor(1) as waiting:
            drained = waiting.submit(driver.publisher.drain if driver.publisher else driver.drain)
            with contextlib.suppress(Exception):  # nothing was acknowledged for the whole deadline: it may say so
                drained.result(60)
            assert drained.done()
        began = time.monotonic()
        driver.bridge.close()
        assert time.monotonic() - began < 30, "close does not wait for the peer"
        assert len(driver.outcomes) == 1500
        assert driver.events()["acked"] == 500
        proxy.speak()
        eventually(lambda: _settled(admin), "the server has read what was under way")
        driver.conserved(admin)
    fresh_message_gets_through(proxy.url, "s.new", **mode)


def _settled(admin: Admin) -> bool:
    """The number of messages does not change over many questions."""
    seen = {int(admin.info("S")["state"]["messages"]) for _ in range(200)}
    return len(seen) == 1


@MODES
def test_a_silence_shorter_than_the_deadline_costs_nothing(admin: Admin, proxy: Proxy, mode: dict[str, Any]) -> None:
    with Driver(proxy.url, wait_timeout=0.3, **mode) as driver:
        driver.begin(["s.a"], 500)
        proxy.silence()
        driver.put(["s.a"], 1000)
        eventually(lambda: driver.counters.resends > 0, "time-outs run")
        proxy.speak()
        driver.drain()
        assert driver.events() == {"acked": 1500}, driver.reasons[:3]
        driver.conserved(admin)


def test_a_users_own_connection_is_used_again_after_a_cut(admin: Admin, proxy: Proxy) -> None:
    async def main() -> int:
        client = Client()

        async def quiet(_: Exception) -> None:
            """The cut is what this is about."""
            close_abandoned(client)

        options: dict[str, Any] = {"reconnect_time_wait": 0.05, "error_cb": quiet}
        await client.connect(proxy.url, **options)
        bridge = NatsBridge.attach(client.jetstream(), loop=asyncio.get_running_loop(), dedup=False)

        def work() -> int:
            bridge.open()
            rows = MessageBatch.of(["s.a"] * 100, [b"x"] * 100)
            first = len(publish(bridge, rows).sequence)
            proxy.cut()
            kinds: list[str] = []
            while len(kinds) < 2:
                kinds += [e.kind.value for e in eventually(lambda: bridge.poll(0.1).events, "it is lost, and found")]
            assert kinds == ["disconnected", "reconnected"]
            batch = MessageBatch.of(["s.a"] * 100, [b"x"] * 100)
            bridge.prepare(batch)
            sent, acked = 0, 0
            while acked < 100:
                if sent < 100:
                    sent += bridge.send(batch.slice(sent, 100 - sent), 1000 + sent)
                polled = bridge.poll(1.0)
                assert not polled.refusals
                acked += sum(len(a.tokens) for a in polled.acks)
            bridge.close()
            return first + acked

        done = await asyncio.to_thread(work)
        await client.close()
        return done

    assert asyncio.run(main()) == 200


def test_auto_goes_on_in_message_mode_when_the_stream_stops_allowing_fast_ingest(
    admin: Admin, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "mama_spark"), Driver(nats_server.url, dedup=False) as driver:
        driver.begin(["s.a"], 1000)
        assert driver.bridge.mode == "batch"
        admin.update_stream("S", allow_batched=False)
        for _ in range(3):
            driver.put(["s.a"], 2000)
        driver.drain()
        assert driver.bridge.mode == "message"
        assert driver.events() == {"acked": 7000}, driver.reasons[:3]
        driver.conserved(admin)
    assert "does not allow fast ingest" in caplog.text


@pytest.mark.parametrize("asked", [{"ack_mode": "batch"}, {"ordered": True}], ids=["batch", "order"])
def test_what_only_fast_ingest_can_do_fails_with_the_reason_when_it_is_off(
    admin: Admin, nats_server: NatsServer, asked: dict[str, Any]
) -> None:
    with Driver(nats_server.url, **asked) as driver:
        driver.begin(["s.a"], 100)
        assert driver.bridge.mode == "batch"
        eventually(
            lambda: driver.bridge._fast_ingest is not None and not driver.bridge._fast_ingest.busy, "the batch ended"
        )
        admin.update_stream("S", allow_batched=False)
        driver.put(["s.a"], 100)
        driver.drain()
        assert driver.events() == {"acked": 100, "completed_exceptionally": 100}
        assert "allow_batched" in driver.reasons[0]
        driver.conserved(admin)


@pytest.mark.own_server
def test_order_is_kept_in_each_of_two_streams_over_a_kill(admin: Admin, nats_server: NatsServer) -> None:
    admin.create_stream("T", ["t.>"], allow_batched=True)
    with Driver(nats_server.url, ack_mode="batch", ordered=True) as driver:
        assert driver.bridge.capabilities.ordered
        for _ in range(5):
            driver.put(["s.a", "t.a", "t.b"], 300)
        eventually(lambda: driver.counters.acked > 300, "some are acknowledged")
        nats_server.kill()
        nats_server.restart()
        driver.drain()
        assert driver.events() == {"acked": 1_500}, driver.reasons[:3]
        for stream in ("S", "T"):
            driver.in_order(admin, stream)
        stored = [m.payload for name in ("S", "T") for m in admin.messages(name)]
        assert sorted(stored) == sorted(o.payload for o in driver.outcomes), "each once"
