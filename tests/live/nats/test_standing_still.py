"""A server stands still (SIGSTOP) for longer than every deadline, which are short here, and goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.batch_config import OnOutage
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_servers import Admin

#: The server gives up a client that does not answer after a second or two; by default after some six minutes.
IMPATIENT = 'ping_interval: "500ms"\nping_max: 2\n'


def make_stream(server: NatsServer) -> None:
    with Admin(server.url) as admin:
        admin.create_stream("S", ["s.>"])


def stored_once(server: NatsServer, messages: int) -> None:
    with Admin(server.url) as admin:
        payloads = [message.payload for message in admin.messages("S")]
    assert len(payloads) == len(set(payloads)) == messages


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", config=IMPATIENT) as server:
        make_stream(server)
        yield server


@pytest.mark.own_server
def test_a_server_that_stood_still_is_waited_for_beyond_every_deadline(
    impatient: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``onUnavailable=wait``; else the task fails, as with any outage."""
    caplog.set_level(logging.WARNING, "mama_spark")
    options: dict[str, Any] = {"wait_timeout": 0.3, "deadline": 1.0, "ack_mode": "message"}
    with Driver(impatient.url, on_outage=OnOutage.WAIT, **options) as driver:
        publisher = driver.publisher
        assert publisher is not None
        driver.begin(["s.a"], 500)
        impatient.pause()
        driver.put(["s.a"], 2_000)
        eventually(lambda: publisher.outage_cause, "the outage is noticed")
        paused = time.monotonic()
        eventually(lambda: time.monotonic() > paused + 3, "all deadlines have passed, the server's too")
        impatient.resume()
        driver.drain()
        assert driver.events() == {"acked": 2_500}, driver.reasons[:3]
    stored_once(impatient, 2_500)
    fresh_message_gets_through(impatient.url, "s.new")
    assert any("messages are acknowledged again" in record.getMessage() for record in caplog.records)
