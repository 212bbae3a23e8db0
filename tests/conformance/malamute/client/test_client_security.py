"""The Malamute client's login, its keys, and its settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
from mama_spark.errors import ConfigError
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings, endpoint
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, Pong, decode, encode
from zmq.auth.thread import ThreadAuthenticator

from tests.support.malamute.malamute_clients import PATIENCE
from tests.support.malamute.scripted_broker import Scripted


def serve(script: Scripted, stop: threading.Event) -> None:
    """Answers OPEN, WRITE and CLOSE."""
    while not stop.is_set():
        if script.router.poll(20):
            identity, *frames = script.router.recv_multipart()
            script.put(identity, *encode(Pong() if decode(frames) == commands.Ping() else Ok()))


@pytest.fixture
def guarded() -> Iterator[Callable[[Callable[[zmq.Socket[bytes]], None], Callable[[ThreadAuthenticator], None]], str]]:
    with ExitStack() as stack:

        def make(secure: Callable[[zmq.Socket[bytes]], None], admit: Callable[[ThreadAuthenticator], None]) -> str:
            script = Scripted(secure)
            guard = ThreadAuthenticator(script.context)
            guard.start()
            admit(guard)
            stop = threading.Event()
            thread = threading.Thread(target=serve, args=(script, stop))
            thread.start()
            for end in (script.close, guard.stop, thread.join, stop.set):
                stack.callback(end)
            return script.url

        yield make


@pytest.mark.spec("ML-27", "C5")
def test_a_plain_login_is_let_in_or_refused_by_name(guarded: Any) -> None:

    def secure(socket: zmq.Socket[bytes]) -> None:
        socket.plain_server = True

    url = guarded(secure, lambda guard: guard.configure_plain("*", {"u": "right"}))
    with MalamuteClient(url, "c", timeout=PATIENCE, user="u", password="right") as client:
        client.write("s")
    with pytest.raises(ConfigError, match="the broker refused the login") as caught:
        MalamuteClient(url, "c", timeout=PATIENCE, user="u", password="wrong-one").open()
    assert "wrong-one" not in str(caught.value)


@pytest.mark.spec("ML-27")
def test_curve_checks_the_broker_and_the_client(guarded: Any) -> None:
    public, secret = zmq.curve_keypair()
    mine = [key.decode() for key in zmq.curve_keypair()]

    def secure(socket: zmq.Socket[bytes]) -> None:
        socket.curve_server = True
        socket.curve_secretkey = secret

    url = guarded(secure, lambda guard: guard.configure_curve_callback("*", _Only(mine[0])))
    keys: dict[str, Any] = {"curve_public_key": mine[0], "curve_secret_key": mine[1]}
    with MalamuteClient(url, "c", timeout=PATIENCE, curve_server_key=public.decode(), **keys) as client:
        client.write("s")
    with pytest.raises(ConfigError, match="the broker refused the login"):
        MalamuteClient(url, "c", timeout=PATIENCE, curve_server_key=public.decode()).open()
    other = zmq.curve_keypair()[0].decode()
    with pytest.raises(ConfigError, match="the broker has another key than curve_server_key"):
        MalamuteClient(url, "c", timeout=PATIENCE, curve_server_key=other, **keys).open()


class _Only:
    def __init__(self, key: str) -> None:
        self.key = key.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return key == zmq.utils.z85.decode(self.key) or key == self.key


@pytest.mark.parametrize(
    "options",
    [
        {"urls": ()}, {"user": "u"}, {"password": "p"}, {"user": "", "password": "p"},
        {"user": "u", "password": "p" * 256},
        {"curve_public_key": "x" * 40, "curve_secret_key": "x" * 40},
        {"curve_server_key": "x" * 39}, {"curve_server_key": "x" * 40, "curve_public_key": "x" * 40},
        {"user": "u", "password": "p", "curve_server_key": "x" * 40},
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ConnectionSettings(**options)


def test_a_key_that_is_none_is_told_and_secrets_are_not() -> None:
    with pytest.raises(ConfigError, match="not Z85"):
        MalamuteClient("mlp://127.0.0.1:1", timeout=1.0, curve_server_key=" " * 40).open()
    assert "hush" not in repr(ConnectionSettings(user="u", password="hush"))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("mlp://h", "tcp://h:9999"), ("MLP://h:1/stream", "tcp://h:1"), ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)  # fmt: skip
def test_urls_name_endpoints(url: str, name: str) -> None:
    assert endpoint(url) == name
