"""TLS that was asked for is TLS, or an error before anything leaves: at the first connection and at each later one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridges.nats import NatsBridge, NatsSettings
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.errors import ConfigError
from mama_spark.testing.waiting import TIMEOUT, until

from tests.support.nats_servers import make_certificates

INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"auth_required":true,"headers":true}\r\n'


class PlainListener:
    """A server without TLS, which writes down what clients send to it."""

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.clients = 0
        self.received = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                client.settimeout(TIMEOUT)
                client.sendall(INFO)
                while data := self._receive(client):
                    self.received += data
            self.clients += 1  # counted when it has left

    @staticmethod
    def _receive(client: socket.socket) -> bytes:
        try:
            return client.recv(65536)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(TIMEOUT)


@contextmanager
def listening(port: int = 0) -> Iterator[PlainListener]:
    listener = PlainListener(port)
    try:
        yield listener
    finally:
        listener.close()


@pytest.mark.parametrize("how", ["scheme", "authority"])
def test_a_server_without_tls_gets_nothing_and_no_password(how: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"tls_ca": str(make_certificates(tmp_path).ca)} if how == "authority" else {}
    with listening() as listener:
        scheme = "tls" if how == "scheme" else "nats"
        url = f"{scheme}://127.0.0.1:{listener.port}"
        bridge = NatsBridge(NatsSettings((url,), user="bob", password="secret", **asked))
        with pytest.raises(ConfigError, match="does not offer it: nothing was sent"):
            bridge.open()
        bridge.close()
        until(lambda: listener.clients > 0)
        assert listener.received == b""


def test_a_server_that_lost_its_tls_gets_nothing_at_a_reconnect(tmp_path: Path) -> None:
    certs = make_certificates(tmp_path / "tls")
    login = "authorization { user: bob, password: secret }\n"
    with NatsServer(tmp_path / "n", config=login + certs.config) as server:
        url = server.url.replace("nats:", "tls:")
        bridge = NatsBridge(NatsSettings((url,), user="bob", password="secret", tls_ca=str(certs.ca)))
        bridge.open()
        server.stop()
        with listening(server.port) as listener:
            until(lambda: listener.clients > 1)  # it came back more than once
            assert listener.received == b""
        bridge.close()


def test_a_server_where_tls_is_a_choice_is_used_with_tls(tmp_path: Path) -> None:
    certs = make_certificates(tmp_path / "tls")
    optional = certs.config.rstrip() + "\nallow_non_tls: true\n"
    with NatsServer(tmp_path / "n", config=optional) as server:
        bridge = NatsBridge(NatsSettings((server.url.replace("nats:", "tls:"),), tls_ca=str(certs.ca)))
        bridge.open()
        (connection,) = server.ask("connz")["connections"]
        assert connection["tls_version"]
        bridge.close()
