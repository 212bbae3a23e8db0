"""Malamute clients, and brokers for them to go to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mama_spark.contracts.errors import Unavailable
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.testing.waiting import eventually

from tests.support.ports import lasting_port

PATIENCE = 60.0


C_CLIENT: dict[str, Any] = {"features": None, "window": None, "ping": 1e6, "silence": 1e6}


def start(bind: str = "", engines: tuple[EngineChoice, ...] = (), **machine: Any) -> Broker:
    bind = bind or f"tcp://127.0.0.1:{lasting_port()}"
    broker = Broker(BrokerSettings(bind, SessionSettings(**{"timeout": 30.0, **machine}), engines, linger=0.5))

    def started() -> bool:
        with suppress(Unavailable):  # the port of the one before is not free yet
            broker.start()
            return True
        return False

    eventually(started, f"the broker starts at {bind}", PATIENCE)
    return broker


Make = Callable[..., MalamuteClient]


def nothing(client: MalamuteClient) -> bool:
    """Nothing waits, and the broker has nothing more."""
    client.sync()
    try:
        client.receive(timeout=0)
    except Unavailable:
        return True
    return False
