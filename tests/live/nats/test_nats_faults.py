"""Failures under a publisher in full flight: the server dies, stops or stands still; the way to it is cut or silent."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
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
    [(killed, MESSAGE), (killed, BATCH), (NatsServer.restart, BATCH), (killed, {"ordered": True, **BATCH})],
    ids=["killed", "killed, batch", "stopped", "killed, in order"],
)
def test_a_server_that_comes_back_has_lost_and_doubled_nothing_and_kept_the_order_of_each_stream(
    nats_server: NatsServer, admin: Admin, mode: dict[str, Any], end: Callable[[NatsServer], object]
) -> None:
    admin.create_stream("T", ["t.>"], allow_batched=True)
    with Driver(nats_server.url, **mode) as driver:
        n = in_full_flight(driver, "s.a", "t.a", "t.b")
        end(nats_server)
        driver.drain()
        assert driver.events() == {"acked": n}, driver.reasons[:3]
        stored = [m.payload for name in "ST" for m in admin.messages(name)]
        assert sorted(stored) == sorted(o.payload for o in driver.outcomes), "each once"
        for stream in "ST" if "ordered" in mode else "":
            driver.in_order(admin, stream)
    fresh_message_gets_through(nats_server.url, "s.new", **mode)


@pytest.mark.parametrize(
    ("mode", "unknown"),
    [
        (BATCH, set()),
        ({"dedup": False, **BATCH}, set()),  # the server knows the batch, and says which prefix it stored
        ({"dedup": False, "resend_uncertain": False, "wait_timeout": 1.0, **MESSAGE}, {"timeout"}),
    ],
    ids=["batch", "batch without ids", "message without ids"],
)
def test_a_cut_connection_loses_and_doubles_nothing_or_owns_up_to_it(
    admin: Admin, proxy: Proxy, mode: dict[str, Any], unknown: set[str]
) -> None:
    with Driver(proxy.url, **mode) as driver:
        in_full_flight(driver, "s.a", "s.b")
        proxy.cut()
        driver.drain()
        assert driver.events().keys() <= {"acked", *unknown}, driver.reasons[:3]
        driver.conserved(admin)
    fresh_message_gets_through(proxy.url, "s.new", ack_mode=mode["ack_mode"])


@pytest.mark.own_server
def test_a_server_that_takes_smaller_messages_from_now_on_refuses_the_large_ones(
    nats_server: NatsServer, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """It tells only who connects, and says why it closes the connection of who sends one: others that were under way go
    again."""
    with Driver(nats_server.url, **BATCH) as driver:
        driver.begin(["s.a"], 1)
        with (nats_server.folder / "nats-server.conf").open("a") as config:
            config.write("max_payload: 1000\n")
        os.kill(nats_server.pid, signal.SIGHUP)
        eventually(lambda: nats_server.ask("varz")["max_payload"] == 1000, "the server has read it")
        for size in (100, 5_000, 100, 5_000):
            driver.put(["s.a"], 50, size=size)
        driver.drain()
        assert driver.events() == {"acked": 101, "completed_exceptionally": 100}, driver.reasons[:3]
        assert "the server takes 1000" in driver.reasons[0]
        assert "the connection to NATS was lost: Maximum Payload Violation" in caplog.text
        driver.conserved(admin)


@pytest.mark.own_server
def test_a_frozen_server_is_outwaited_and_looks_up_no_new_topics_meanwhile(
    nats_server: NatsServer, admin: Admin
) -> None:
    another = NatsBridge(NatsSettings((nats_server.url,), stream="S", connect_timeout=1.0))
    with contextlib.closing(another), Driver(nats_server.url, wait_timeout=0.5, **BATCH) as driver:
        another.open()
        driver.begin(["s.a"], 100)
        nats_server.pause()
        tasks = Path(f"/proc/{nats_server.pid}/task").glob("*/stat")
        assert {task.read_text().rpartition(")")[2].split()[0] for task in tasks} == {"T"}, "all its threads, at once"
        driver.put(["s.a"], 1_400, size=1000)
        with pytest.raises(Unavailable):
            another.prepare(MessageBatch.of(["s.b"], [b""]))
        eventually(lambda: driver.counters.resends > 0, "time-outs run while the server says nothing")
        nats_server.resume()
        driver.drain()
        assert driver.events() == {"acked": 1_500}, driver.reasons[:3]
        driver.conserved(admin)


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


def off(admin: Admin) -> None:
    admin.update_stream("S", allow_batched=False)


def deleted(admin: Admin) -> None:
    assert admin.api("STREAM.DELETE.S")["success"]


@pytest.mark.parametrize(
    ("change", "asked", "reason"),
    [(off, BATCH, "allow_batched"), (off, {"ordered": True}, "allow_batched"), (deleted, {}, "NO_RESPONDERS")],
    ids=["no fast ingest for batches", "no fast ingest for the order", "no stream"],
)
def test_rows_fail_with_the_reason_when_their_stream_serves_no_more(
    admin: Admin, nats_server: NatsServer, change: Callable[[Admin], None], asked: dict[str, Any], reason: str
) -> None:
    with Driver(nats_server.url, wait_timeout=60.0, deadline=2.0, **asked) as driver:
        driver.begin(["s.a"], 100)
        ingest = driver.bridge._fast_ingest
        eventually(lambda: ingest is None or not ingest.busy, "the batch ended")
        change(admin)
        driver.put(["s.a"], 100)
        driver.drain()
        assert driver.events() == {"acked": 100, "completed_exceptionally": 100}
        assert reason in driver.reasons[0]


@pytest.mark.parametrize(("mode", "outcome"), [("none", "published"), ("message", "acked"), ("batch", "acked")])
def test_all_arrives_over_a_slow_way(admin: Admin, proxy: Proxy, mode: str, outcome: str) -> None:
    """Without acknowledgements the publisher ends long before that."""
    with Driver(proxy.url, ack_mode=mode) as driver:
        driver.put(["s.a"], 1)
        eventually(lambda: driver.outcomes, "it is connected")
        proxy.slow(0.02)
        driver.put(["s.a"], 60, 100_000)
        driver.drain()
        assert driver.events() == {outcome: 61}
    assert len(admin.messages("S")) == 61
