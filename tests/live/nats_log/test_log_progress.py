"""A reader's progress, as an operator sees it at the server."""

from __future__ import annotations

import logging

import pytest
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_log import fill, reading
from tests.support.nats.nats_servers import Admin


def lag(admin: Admin, name: str) -> int:
    return int(admin.api(f"CONSUMER.INFO.{name}.telemetry")["num_pending"])


def test_progress_is_seen_at_the_broker(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name, 100)
    with reading(shared.url) as logs:
        log = logs.log(name)
        log.progress("telemetry", 0)
        assert lag(admin, name) == 100
        log.progress("telemetry", 40)
        info = admin.api(f"CONSUMER.INFO.{name}.telemetry")
        assert (info["num_pending"], info["ack_floor"]["stream_seq"]) == (60, 40)
        assert info["config"]["ack_policy"] == "all"
        log.progress("telemetry", 100)
        assert lag(admin, name) == 0
        log.progress("telemetry", 50, [f"{name}.0"])
        assert lag(admin, name) == 25


def test_a_consumer_of_somebody_else_is_not_moved(
    shared: NatsServer, admin: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(shared.url, name, 10)
    theirs = {"stream_name": name, "config": {"durable_name": "telemetry", "ack_policy": "explicit"}}
    admin.api(f"CONSUMER.CREATE.{name}.telemetry", theirs)
    with reading(shared.url) as logs, caplog.at_level(logging.WARNING, "mama_spark"):
        logs.log(name).progress("telemetry", 5)
    assert lag(admin, name) == 10
    assert "somebody else's" in caplog.text
