"""Who does not get in is told why, as something to change (ML-27): all pairs of mechanisms, wrong secrets."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import zmq
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings
from mama_spark.malamute.broker.broker.security import Security
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.server_key_check import mechanism_of
from mama_spark.testing.waiting import eventually

PATIENCE = 60.0


def pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


PUBLIC, SECRET = pair()
MINE, MY_SECRET = pair()
OTHER, _ = pair()
OWN = {"curve_public_key": MINE, "curve_secret_key": MY_SECRET}
BROKERS = {
    "NULL": Security(),
    "PLAIN": Security({"u": "right"}),
    "CURVE": Security(curve_secret_key=SECRET, curve_clients=(MINE,)),
}
FOR_ALL = Security(curve_secret_key=SECRET)
CLIENTS: dict[str, dict[str, Any]] = {
    "NULL": {},
    "PLAIN": {"user": "u", "password": "right"},
    "CURVE": {"curve_server_key": PUBLIC, **OWN},
    "PLAIN, wrong password": {"user": "u", "password": "hush-hush"},
    "PLAIN, unknown user": {"user": "v", "password": "right"},
    "CURVE, wrong key of the broker": {"curve_server_key": OTHER, **OWN},
    "CURVE, unknown client": {"curve_server_key": PUBLIC},
}
WRONG = {
    **{(broker, client): "another security mechanism" for broker in BROKERS for client in BROKERS if broker != client},
    ("PLAIN", "PLAIN, wrong password"): "refused the login",
    ("PLAIN", "PLAIN, unknown user"): "refused the login",
    ("CURVE", "CURVE, wrong key of the broker"): "another key than curve_server_key",
    ("CURVE", "CURVE, unknown client"): "refused the login",
}


def start(ends: ExitStack, security: Security) -> Broker:
    return ends.enter_context(Broker(BrokerSettings("tcp://127.0.0.1:*", security=security)))


def connect(endpoint: str, client: str, timeout: float = PATIENCE) -> MalamuteClient:
    return MalamuteClient(endpoint.replace("tcp", "mlp"), timeout=timeout, **CLIENTS[client])


@pytest.mark.spec("C5", "C9", "ML-27")
@pytest.mark.parametrize(("broker", "client"), WRONG, ids=lambda name: str(name))
def test_what_does_not_go_together_is_a_matter_of_configuration(
    ends: ExitStack, broker: str, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once but always: a race between the two ends of the handshake must not make it a timeout."""
    there = start(ends, BROKERS[broker])
    for _ in range(3):
        with pytest.raises(ConfigError, match=WRONG[broker, client]) as caught:
            connect(there.endpoint, client).open()
        assert "hush" not in str(caught.value) + caplog.text
    assert there.clients() == []
    if WRONG[broker, client] == "refused the login":
        ((_, _, samples),) = [one for one in there.metrics() if one.name == "malamute_refused_logins_total"]
        assert samples[0][1] >= 3


@pytest.mark.spec("C5", "C9", "ML-27")
@pytest.mark.parametrize(
    ("security", "name"), [*((BROKERS[name], name) for name in BROKERS), (FOR_ALL, "CURVE, unknown client")]
)
def test_who_may_gets_in_and_the_greeting_names_the_mechanism(ends: ExitStack, security: Security, name: str) -> None:
    there = start(ends, security)
    assert mechanism_of(there.endpoint, PATIENCE) == name.partition(",")[0]
    assert not any(secret in repr(there.settings) for secret in (SECRET, "right"))
    with connect(there.endpoint, name) as client:
        client.write("s")
        client.send("x", b"1")
        assert client.sync()


@pytest.mark.parametrize("client", BROKERS)
def test_a_peer_that_ends_every_connection_is_one_that_may_come_back(ends: ExitStack, client: str) -> None:
    """As the forwarder of a container does whose broker is down."""
    listener = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.settimeout(0.05)
    done = threading.Event()

    def hang_up() -> None:
        while not done.is_set():
            with suppress(TimeoutError):
                listener.accept()[0].close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    ends.callback(thread.join, PATIENCE)
    ends.callback(done.set)
    endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(Unavailable):
        connect(endpoint, client, 0.7).open()
    assert mechanism_of(endpoint, PATIENCE) is None


def test_only_zmtp_greets(ends: ExitStack) -> None:
    listener = ends.enter_context(socket.create_server(("127.0.0.1", 0)))

    def talk() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(100))
            peer.recv(1000)

    thread = threading.Thread(target=talk)
    thread.start()
    assert mechanism_of(f"tcp://127.0.0.1:{listener.getsockname()[1]}", PATIENCE) is None
    thread.join(PATIENCE)
    assert mechanism_of("ipc://nowhere", 1.0) is None


#: Greetings of ZMTP (RFC 23): of version 3 without security; of version 2, and of version 1 (a frame with an empty
#: identity), which have none.
NULL_3 = b"\xff" + b"\0" * 7 + b"\x01\x7f\x03\x00NULL".ljust(22, b"\0") + b"\0" * 32
OLD = {"2": b"\xff" + b"\0" * 7 + b"\x01\x7f\x01\x05\x00\x00", "1": b"\x01\x00"}
GREETING = 64


class Peer:
    """Accepts, greets, and writes down what each of its peers sends."""

    def __init__(self, greeting: bytes, port: int = 0) -> None:
        self._greeting = greeting
        self._listener = socket.create_server(("127.0.0.1", port))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                with peer:
                    peer.settimeout(0.5)
                    peer.sendall(self._greeting)
                    self.received.append(b"")
                    with suppress(TimeoutError):
                        while some := peer.recv(65536):
                            self.received[-1] += some

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)


def peer(ends: ExitStack, greeting: bytes, port: int = 0) -> Peer:
    made = Peer(greeting, port)
    ends.callback(made.close)
    return made


@pytest.mark.parametrize(("client", "version"), [("PLAIN", "3"), ("CURVE", "3"), *(("PLAIN", old) for old in OLD)])
def test_a_broker_without_security_gets_the_greeting_and_nothing_else(
    ends: ExitStack, client: str, version: str
) -> None:
    """Old versions of ZMTP have no security: no client falls back to one."""
    there = peer(ends, OLD.get(version, NULL_3))
    with pytest.raises((ConfigError, Unavailable)):
        connect(there.endpoint, client, 3.0).open()
    assert there.received
    assert all(len(sent) <= GREETING for sent in there.received)
    assert not any(b"right" in sent or MY_SECRET.encode() in sent for sent in there.received)


@pytest.mark.parametrize("mechanism", ["PLAIN", "CURVE"])
def test_a_broker_that_lost_its_security_gets_nothing_at_a_reconnect(ends: ExitStack, mechanism: str) -> None:
    broker = Broker(BrokerSettings("tcp://127.0.0.1:*", security=BROKERS[mechanism]))
    broker.start()
    port = int(broker.endpoint.rsplit(":", 1)[1])
    client = connect(broker.endpoint, mechanism, 2.0)
    ends.callback(client.close, 0.0)
    client.open()
    client.write("s")
    broker.stop()
    there = peer(ends, NULL_3, port)
    with suppress(MamaError):
        client.send("x", b"very private")
    eventually(lambda: len(there.received) > 1, "it came back")
    assert all(len(sent) <= GREETING for sent in there.received)
    assert not any(b"private" in sent or b"right" in sent for sent in there.received)


@pytest.mark.parametrize("mechanism", ["PLAIN", "CURVE"])
@pytest.mark.parametrize("greeting", [NULL_3, *OLD.values()], ids=["3", *OLD])
def test_a_broker_with_security_falls_back_to_none_for_nobody(ends: ExitStack, mechanism: str, greeting: bytes) -> None:
    there = start(ends, BROKERS[mechanism])
    command = b"\xaa\xa8\x01\x06MALAMU"  # what a client without a login would go on with
    with socket.create_connection(("127.0.0.1", int(there.endpoint.rsplit(":", 1)[1])), PATIENCE) as client:
        client.sendall(greeting + bytes([0, len(command)]) + command)
        answered = b""
        with suppress(ConnectionError):
            while some := client.recv(65536):  # until the broker ends the connection
                answered += some
    assert len(answered) <= GREETING
    assert there.clients() == []
