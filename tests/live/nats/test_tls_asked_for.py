"""TLS that was asked for is TLS, or an error before anything leaves: at the first connection and at each later one."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mama_spark
import pytest
from mama_spark.bridges.nats import NatsBridge, NatsSettings
from mama_spark.bridges.nats.connection.connection import Connection
from mama_spark.bridges.nats.connection.event_loop import EventLoopThread
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.errors import ConfigError
from mama_spark.testing.waiting import TIMEOUT, until
from nats.aio.client import Client

from tests.support.nats.nats_servers import Certificates, make_certificates
from tests.support.ports import lasting_port

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


@pytest.mark.parametrize("how", ["scheme", "SCHEME", "authority", "key"])
def test_a_server_without_tls_gets_nothing_and_no_password(how: str, tmp_path: Path) -> None:
    certs = make_certificates(tmp_path)
    asked: dict[str, Any] = {
        "authority": {"tls_ca": str(certs.ca)},
        "key": {"tls_cert": str(certs.cert), "tls_key": str(certs.key)},
    }.get(how, {})
    with listening() as listener:
        scheme = {"scheme": "tls", "SCHEME": "TLS"}.get(how, "nats")
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


@contextmanager
def connected(settings: NatsSettings) -> Iterator[Client]:
    loop = EventLoopThread()
    connection = loop.run(Connection.connect(loop, settings), TIMEOUT, "connecting")
    try:
        yield connection.client
    finally:
        loop.run(connection.close(), TIMEOUT, "closing")
        loop.stop()


@contextmanager
def two_servers(folder: Path, certs: Certificates, of_second: str) -> Iterator[list[NatsServer]]:
    """A cluster whose first server wants TLS and a login."""
    route = lasting_port()
    first = f'cluster {{ name: c, listen: "127.0.0.1:{route}" }}\n{certs.config}'
    second = f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: ["nats://127.0.0.1:{route}"] }}\n{of_second}'
    login = "\nauthorization { user: bob, password: secret }\n"
    with (
        NatsServer(folder / "a", name="a", config=first + login, jetstream=None) as a,
        NatsServer(folder / "b", name="b", config=second + login, jetstream=None) as b,
    ):
        until(lambda: a.ask("routez")["num_routes"] > 0)
        yield [a, b]


@pytest.mark.parametrize("login", ["options", "url"])
def test_a_member_of_a_cluster_that_has_no_tls_gets_nothing(login: str, tmp_path: Path) -> None:
    """One that the client was not given, but heard of from the server that it was connected to."""
    certs = make_certificates(tmp_path / "tls")
    with listening() as listener, ExitStack() as ends:
        advertised = f'client_advertise: "127.0.0.1:{listener.port}"'
        first, _ = ends.enter_context(two_servers(tmp_path, certs, advertised))
        given: dict[str, Any] = {"user": "bob", "password": "secret"} if login == "options" else {}
        url = first.url.replace("nats://", "tls://" if given else "tls://bob:secret@")
        client = ends.enter_context(connected(NatsSettings((url,), tls_ca=str(certs.ca), **given)))
        until(lambda: any(server.port == listener.port for server in client.discovered_servers))
        first.stop()
        until(lambda: listener.clients > 1)
        assert listener.received == b""


def test_a_login_of_the_url_counts_for_members_that_a_cluster_announces(tmp_path: Path) -> None:
    """Else the first reconnect to one of these is refused."""
    certs = make_certificates(tmp_path / "tls")
    with ExitStack() as ends:
        nodes = ends.enter_context(two_servers(tmp_path, certs, certs.config))
        url = nodes[0].url.replace("nats://", "tls://bob:secret@")
        client = ends.enter_context(connected(NatsSettings((url,), tls_ca=str(certs.ca))))
        until(lambda: any(server.port == nodes[1].port for server in client.discovered_servers))
        nodes[0].stop()

        def users() -> list[str | None]:
            """Without a name: the connection is listed, and has not logged in yet."""
            return [c.get("authorized_user") for c in nodes[1].ask("connz?auth=true")["connections"]]

        until(lambda: users() == ["bob"])
        (connection,) = nodes[1].ask("connz?auth=true")["connections"]
        assert connection["tls_version"]


def test_clients_of_nats_are_made_in_one_place() -> None:
    """Where it is decided that they use TLS."""
    package = Path(mama_spark.__file__).parent
    makers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"(?<![\w.`])(Client|NATS|nats\.connect|nats\.NATS)\(", path.read_text(encoding="utf-8"))
    }
    assert makers == {"bridges/nats/connection/connection.py"}


def test_a_server_where_tls_is_a_choice_is_used_with_tls(tmp_path: Path) -> None:
    certs = make_certificates(tmp_path / "tls")
    optional = certs.config.rstrip() + "\nallow_non_tls: true\n"
    with NatsServer(tmp_path / "n", config=optional) as server:
        bridge = NatsBridge(NatsSettings((server.url.replace("nats:", "tls:"),), tls_ca=str(certs.ca)))
        bridge.open()
        (connection,) = server.ask("connz")["connections"]
        assert connection["tls_version"]
        bridge.close()
