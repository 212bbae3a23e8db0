"""Malamute clients, and brokers for them to go to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mama_spark.contracts.errors import Unavailable
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.client.client import MalamuteClient

from tests.support.ports import lasting_port

PATIENCE = 60.0


C_CLIENT: dict[str, Any] = {"features": None, "window": None, "ping": 1e6, "silence": 1e6}


def start(bind: str = "", engines: tuple[EngineChoice, ...] = (), **machine: Any) -> Broker:
    bind = bind or f"tcp://127.0.0.1:{lasting_port()}"
    broker = Broker(BrokerSettings(bind, SessionSettings(**{"timeout": 30.0, **machine}), engines, linger=0.5))
    until = time.monotonic() + PATIENCE
    while True:
        try:
            broker.start()
            return broker
        except Unavailable:  # the port of the one before is not free yet
            assert time.monotonic() < until
            time.sleep(0.05)


Make = Callable[..., MalamuteClient]


def nothing(client: MalamuteClient) -> bool:
    """Nothing waits, and the broker has nothing more."""
    client.sync()
    try:
        client.receive(timeout=0)
    except Unavailable:
        return True
    return False
