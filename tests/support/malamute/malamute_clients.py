"""Malamute clients, and brokers for them to go to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
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


class Scripted:
    """A ROUTER that does what the test says."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.set_hwm(10)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.url = f"mlp://127.0.0.1:{port}"

    def get(self) -> tuple[bytes, list[bytes]]:
        assert self.router.poll(int(PATIENCE * 1000)), "nothing came"
        identity, *frames = self.router.recv_multipart()
        return identity, frames

    def put(self, identity: bytes, *frames: bytes) -> None:
        self.router.send_multipart([identity, *frames])

    def close(self) -> None:
        self.router.close(0)
        self.context.term()
