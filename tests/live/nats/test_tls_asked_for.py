"""TLS that was asked for is TLS, or an error before anything leaves: at the first connection and at each later one."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import mama_spark
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.nats import NatsSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import TIMEOUT, until

from tests.support.nats.connections import connected
from tests.support.nats.nats_servers import Certificates, make_certificates
from tests.support.ports import lasting_port

INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"auth_required":true,"headers":true}\r\n'


class PlainListener:
    """A server without TLS, which writes down what clients send to it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
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


@pytest.mark.parametrize(("scheme", "files"), [("TLS", ()), ("nats", ("tls_ca",)), ("nats", ("tls_cert", "tls_key"))])
def test_a_server_without_tls_gets_nothing_and_no_password(scheme: str, files: tuple[str, ...], tmp_path: Path) -> None:
    certs = make_certificates(tmp_path)
    asked: dict[str, Any] = {name: str(getattr(certs, name.removeprefix("tls_"))) for name in files}
    with closing(PlainListener()) as listener:
        url = f"{scheme}://127.0.0.1:{listener.port}"
        settings = NatsSettings((url,), user="bob", password="secret", **asked)
        with pytest.raises(ConfigError, match="does not offer it: nothing was sent"), connected(settings):
            pass
        until(lambda: listener.clients > 0)
        assert listener.received == b""


@contextmanager
def two_servers(folder: Path, certs: Certificates, of_second: str) -> Iterator[list[NatsServer]]:
    """A cluster whose first server wants TLS and a login."""
    route = lasting_port()
    soon = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
    first = f'{soon}cluster {{ name: c, listen: "127.0.0.1:{route}" }}\n{certs.config}'
    second = f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: ["nats://127.0.0.1:{route}"] }}\n{of_second}'
    login = "\nauthorization { user: bob, password: secret }\n"
    with (
        NatsServer(folder / "a", name="a", config=first + login, jetstream=None) as a,
        NatsServer(folder / "b", name="b", config=second + login, jetstream=None) as b,
    ):
        until(lambda: a.ask("routez")["num_routes"] > 0)
        yield [a, b]


def test_a_member_of_a_cluster_that_has_no_tls_gets_nothing(tmp_path: Path) -> None:
    """One that the client was not given, but heard of from the server that it was connected to."""
    certs = make_certificates(tmp_path / "tls")
    with closing(PlainListener()) as listener, ExitStack() as ends:
        first, _ = ends.enter_context(two_servers(tmp_path, certs, f'client_advertise: "127.0.0.1:{listener.port}"'))
        url = first.url.replace("nats://", "tls://bob:secret@")
        client = ends.enter_context(connected(NatsSettings((url,), tls_ca=str(certs.ca))))
        client.until(lambda: f"127.0.0.1:{listener.port}" in client.servers)
        first.stop()
        client.until(lambda: listener.clients > 1)  # it came back more than once
        assert listener.received == b""


def test_a_lame_duck_is_left_for_the_server_that_its_cluster_announces_with_tls_and_the_login_of_the_url(
    tmp_path: Path,
) -> None:
    certs = make_certificates(tmp_path / "tls")
    with ExitStack() as ends:
        duck, other = ends.enter_context(two_servers(tmp_path, certs, certs.config))
        url = duck.url.replace("nats://", "tls://bob:secret@")
        client = ends.enter_context(connected(NatsSettings((url,), tls_ca=str(certs.ca))))
        client.until(lambda: any(server.endswith(f":{other.port}") for server in client.servers))
        os.kill(duck.pid, signal.SIGUSR2)
        client.until(lambda: client.up and client.info.name == "b")
        assert client.echoes()
        (connection,) = other.ask("connz?auth=true")["connections"]
        assert (connection["authorized_user"], bool(connection["tls_version"])) == ("bob", True)


def test_no_client_of_nats_py_is_made() -> None:
    """It would send credentials in plain to a server that does not ask for TLS."""
    package = Path(mama_spark.__file__).parent
    makers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(
            r"(?<![\w.`])((Nats|Tls)?Client|NATS|nats\.connect|nats\.NATS)\(", path.read_text(encoding="utf-8")
        )
    }
    assert makers == set()


#: What goes wrong with TLS -> server, options without ``tlsCa``, and what the error says to do.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("tls", {}, "certificate.*option tlsCa names the authority"),
    ("tls", {"tls_ca": "other_ca"}, "certificate.*option tlsCa names the authority"),
    ("tls", {"tls_ca": "ca", "host": "localhost"}, "not valid for 'localhost'.*the url must name the server as"),
    ("tls", {"tls_ca": "ca", "password": "wrong"}, "refuses the credentials"),
    (
        "tls",
        {"tls_ca": "ca", "tls_handshake_first": True, "connect_timeout": 1.0},
        "greets before TLS: leave out option tlsHandshakeFirst",
    ),
    ("verifying", {"tls_ca": "ca"}, "options tlsCert and tlsKey"),
    (
        "first",
        {"tls_ca": "ca", "connect_timeout": 1.0},
        "does not greet.*begins with TLS: set option tlsHandshakeFirst.*the limit is option connectTimeout",
    ),
    ("first", {"tls_handshake_first": True}, "certificate.*option tlsCa names the authority"),
    ("tls", {"tls_ca": "usageless", "strict": True}, "CA cert does not include key usage.*-addext keyUsage=critical"),
]


DEFAULT = ssl.create_default_context


def strict(**files: Any) -> ssl.SSLContext:
    """As Python 3.13 makes it."""
    context = DEFAULT(**files)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def without_key_usage(certs: Certificates) -> bytes:
    """The CA as ``openssl req -x509`` makes one: it does not say what its key may be used for."""
    old = x509.load_pem_x509_certificate(certs.ca.read_bytes())
    new = x509.CertificateBuilder(
        old.subject, old.subject, old.public_key(), old.serial_number, old.not_valid_before_utc, old.not_valid_after_utc
    )
    key = load_pem_private_key(certs.ca_key.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    new = new.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(old.public_key())
    return new.add_extension(identifier, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)


def test_an_error_of_tls_names_the_option_or_what_the_certificate_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    certs, usageless = make_certificates(tmp_path / "tls"), tmp_path / "usageless.pem"
    usageless.write_bytes(without_key_usage(certs))
    login = "\nauthorization { user: bob, password: secret }\n"
    configs = {
        "tls": certs.config, "verifying": certs.verifying,
        "first": certs.config.replace("}", "  handshake_first: true\n}"),
    }  # fmt: skip
    files = {"ca": certs.ca, "other_ca": certs.other_ca, "usageless": usageless}
    with ExitStack() as ends:
        servers = {
            name: ends.enter_context(NatsServer(tmp_path / name, config=config + login, jetstream=None))
            for name, config in configs.items()
        }
        for name, given, said in REFUSED:
            options: dict[str, Any] = {"user": "bob", "password": "secret", "connect_timeout": 3.0, **given}
            monkeypatch.setattr(ssl, "create_default_context", strict if options.pop("strict", False) else DEFAULT)
            host, ca = options.pop("host", "127.0.0.1"), options.pop("tls_ca", None)
            for scheme in {"tls", "nats"} if ca is None else {"tls"}:
                url = f"{scheme}://{host}:{servers[name].port}"
                with (
                    pytest.raises((ConfigError, Unavailable), match=f"(?s){said}"),
                    connected(NatsSettings((url,), tls_ca=None if ca is None else str(files[ca]), **options)),
                ):
                    pass
            assert "password" not in given or not caplog.messages, "asyncio writes nothing of its own"
        first = servers["first"].url
        settings = NatsSettings((first,), user="bob", password="secret", tls_ca=str(certs.ca), tls_handshake_first=True)
        with connected(settings) as client:
            assert client.up


@pytest.mark.thorough
def test_certificates_made_as_the_page_says_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a strict Python."""
    page = Path(__file__).parents[3] / "docs" / "how-to" / "secure-the-connection.md"
    (commands,) = re.findall(r"(?s)```bash\n(.*?)```", page.read_text(encoding="utf-8"))
    assert "IP:10.0.0.7" in commands
    here = commands.replace("10.0.0.7", "127.0.0.1")
    made = subprocess.run(
        ["bash", "-e", "-c", here], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert made.returncode == 0, made.stderr
    monkeypatch.setattr(ssl, "create_default_context", strict)
    config = f'tls {{ cert_file: "{tmp_path}/server.crt", key_file: "{tmp_path}/server.key" }}'
    with NatsServer(tmp_path / "n", config=config, jetstream=None) as server:
        url = server.url.replace("nats:", "tls:")
        with connected(NatsSettings((url,), tls_ca=str(tmp_path / "ca.crt"))) as client:
            assert client.up
