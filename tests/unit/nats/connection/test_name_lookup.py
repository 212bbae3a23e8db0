"""A name that the system looks up for long costs no more than the time of an attempt."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.testing.waiting import TIMEOUT, eventually


def test_who_connects_does_not_wait_for_the_name_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, answered, asked = socket.getaddrinfo, threading.Event(), list[str]()

    def held(host: str, *rest: Any, **more: Any) -> Any:
        if more.get("flags"):
            return look_up(host, *rest, **more)  # is it an address?
        asked.append(host)
        assert answered.wait(TIMEOUT)
        return look_up("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", held)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = SocketConnection(NatsSettings((f"nats://name:{server.getsockname()[1]}",), connect_timeout=0.05))
        with pytest.raises(Unavailable, match="no NATS server answers within"):
            connection.open()
        assert asked == ["name"]
        assert not answered.is_set(), "it is still looked up"
        later = SocketConnection(NatsSettings((f"nats://name:{server.getsockname()[1]}",), connect_timeout=TIMEOUT))
        later.drive(0)
        answered.set()
        server.setblocking(False)

        def connected() -> bool:
            later.drive(0.01)
            try:
                server.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        eventually(connected, "it connects when the answer is there")
        later.close()


def test_what_is_no_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, flags: int = 0, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known") if flags else ValueError("embedded null character")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(Unavailable, match="embedded null character"):
        SocketConnection(NatsSettings(("nats://name",), connect_timeout=0.2)).open()
