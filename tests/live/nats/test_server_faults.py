"""Failures of the server under a publisher in full flight: nothing is lost, nothing is stored twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_servers import Admin

pytestmark = pytest.mark.own_server

MODES: list[dict[str, Any]] = [{"ack_mode": "message"}, {"ack_mode": "message", "fast": False}, {"ack_mode": "batch"}]
IDS = ["message", "public calls", "batch"]


def stream(admin: Admin) -> None:
    admin.create_stream("S", ["s.>"], allow_batched=True)


def in_full_flight(driver: Driver, *topics: str) -> int:
    """So many messages are put; some are acknowledged, and more than the window takes are not even sent."""
    each = 500 if driver.bridge.settings.fast is False else 2000
    for _ in range(4):
        driver.put(list(topics), each)
    eventually(lambda: driver.counters.acked > each, "some are acknowledged")
    return 4 * each


@pytest.mark.parametrize("mode", MODES, ids=IDS)
def test_sigkill_and_restart_in_flight_loses_and_doubles_nothing(nats_server: NatsServer, mode: dict[str, Any]) -> None:
    with Admin(nats_server.url) as admin:
        stream(admin)
        with Driver(nats_server.url, **mode) as driver:
            n = in_full_flight(driver, "s.a", "s.b")
            nats_server.kill()
            nats_server.restart()
            driver.drain()
            assert driver.events() == {"acked": n}, driver.reasons[:3]
            driver.conserved(admin)
        fresh_message_gets_through(nats_server.url, "s.new", **mode)


@pytest.mark.parametrize("mode", MODES, ids=IDS)
def test_graceful_stop_and_restart_loses_and_doubles_nothing(nats_server: NatsServer, mode: dict[str, Any]) -> None:
    with Admin(nats_server.url) as admin:
        stream(admin)
        with Driver(nats_server.url, **mode) as driver:
            n = in_full_flight(driver, "s.a")
            nats_server.restart()
            driver.drain()
            assert driver.events() == {"acked": n}, driver.reasons[:3]
            driver.conserved(admin)
        fresh_message_gets_through(nats_server.url, "s.new", **mode)


@pytest.mark.parametrize("mode", MODES, ids=IDS)
def test_a_frozen_server_is_outwaited_and_late_acks_are_counted(nats_server: NatsServer, mode: dict[str, Any]) -> None:
    with Admin(nats_server.url) as admin:
        stream(admin)
        with Driver(nats_server.url, wait_timeout=0.5, **mode) as driver:
            driver.begin(["s.a"], 500)
            nats_server.pause()
            driver.put(["s.a"], 3000, size=1000)
            eventually(lambda: driver.counters.resends > 0, "time-outs run while the server says nothing")
            nats_server.resume()
            driver.drain()
            assert driver.events() == {"acked": 3500}, driver.reasons[:3]
            driver.conserved(admin)
        fresh_message_gets_through(nats_server.url, "s.new", **mode)


def test_without_ids_and_without_resending_doubt_nothing_is_doubled(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        stream(admin)
        options: dict[str, Any] = {"dedup": False, "ack_mode": "message", "resend_uncertain": False}
        with Driver(nats_server.url, wait_timeout=1.0, **options) as driver:
            in_full_flight(driver, "s.a")
            nats_server.kill()
            nats_server.restart()
            driver.drain()
            assert set(driver.events()) <= {"acked", "timeout"}
            driver.conserved(admin)


def test_a_server_that_stays_away_fails_every_row_at_the_deadline(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        stream(admin)
        with Driver(nats_server.url, wait_timeout=0.3, deadline=1.5) as driver:
            driver.begin(["s.a"], 500)
            nats_server.pause()
            driver.put(["s.a"], 500)
            eventually(lambda: len(driver.outcomes) == 1000, "every row has its terminal event")
            assert driver.events() == {"acked": 500, "timeout": 500}
            nats_server.resume()
        driver.conserved(admin)
        fresh_message_gets_through(nats_server.url, "s.new")


def test_order_survives_a_kill_with_fast_ingest_and_ids(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        stream(admin)
        with Driver(nats_server.url, ack_mode="batch", ordered=True, stream="S") as driver:
            assert driver.bridge.capabilities.ordered
            n = in_full_flight(driver, "s.a")
            nats_server.kill()
            nats_server.restart()
            driver.drain()
            assert driver.events() == {"acked": n}, driver.reasons[:3]
            driver.conserved(admin)
            driver.in_order(admin)


def test_a_restart_on_another_store_is_no_stream_and_not_silence(nats_server: NatsServer, tmp_path: Path) -> None:
    with Admin(nats_server.url) as admin:
        stream(admin)
        with Driver(nats_server.url, wait_timeout=60.0, deadline=2.0) as driver:
            driver.begin(["s.a"], 100)
            assert admin.api("STREAM.DELETE.S")["success"]
            driver.put(["s.a"], 100)
            driver.drain()
            assert driver.events() == {"acked": 100, "completed_exceptionally": 100}
            assert "NO_RESPONDERS" in driver.reasons[0]
            assert driver.counters.resends < 5000, "503 holds the publisher"
