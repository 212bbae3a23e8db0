"""Whether messages that were sent to a server which was left may still be stored, asked of real servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.jetstream import server_probe
from mama_spark.nats.jetstream.server_probe import SentTo, why_unfenced
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.testing.waiting import TIMEOUT

from tests.support.nats.nats_servers import Admin
from tests.support.ports import lasting_port
from tests.support.tables import each

ANOTHER, ELSE = {"name": "another", "id": "another process"}, "another one answers there"
REFUSES = b"INFO {}\r\n-ERR 'Authorization Violation'\r\n"
without_name = pytest.mark.own_server(name="")


@pytest.fixture
def settings(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> NatsSettings:
    monkeypatch.setattr(server_probe, "SETTLE", 0.01)
    return NatsSettings((nats_server.url,), connect_timeout=5.0)


@pytest.fixture
def server(settings: NatsSettings) -> Iterator[SentTo]:
    """With streams that take ``t.a`` and ``u.a``."""
    with Admin(settings.servers[0]) as admin:
        admin.create_stream("T", ["t.>"])
        admin.create_stream("U", ["u.>"])
    connection = SocketConnection(settings)
    connection.open()
    yield SentTo.over(connection)
    connection.close()


@pytest.mark.parametrize(
    ("other", "stream", "topic", "says"),
    [
        pytest.param({}, "U", "u.a", None, id="it is alive"),
        pytest.param({"id": "another process"}, "U", "u.a", None, id="it was started again"),
        pytest.param({}, "U", "nobody", "the leader of the stream does not answer through it", id="no leader"),
        pytest.param(ANOTHER, "U", "u.a", ELSE, id="another server"),
        pytest.param({}, "U", "u.a", None, marks=without_name, id="it is alive, without a name"),
        pytest.param(ANOTHER, "U", "u.a", None, marks=without_name, id="it was started again, without a name"),
        pytest.param(ANOTHER, "?", "u.a", ELSE, marks=without_name, id="another server has the stream"),
        pytest.param({**ANOTHER, "alone": False}, "U", "u.a", ELSE, marks=without_name, id="it had a name, or others"),
        pytest.param({**ANOTHER, "alone": True}, "U", "u.a", ELSE, id="another server with a name"),
    ],
)
def test_a_server_that_answers(
    settings: NatsSettings, server: SentTo, other: dict[str, Any], stream: str, topic: str, says: str | None
) -> None:
    assert server.own
    found = why_unfenced(settings, replace(server, **other), {"T": "t.b", stream: topic})
    assert (says in found[stream]) if says else not found
    assert "T" not in found or other, "the leader of this stream answers"
    with Admin(settings.servers[0]) as admin:
        assert not admin.info("T")["state"]["last_seq"], "what it is asked with is not stored"


@each(
    "own, says, why",
    [
        pytest.param(True, None, None, id="it is gone"),
        pytest.param(False, None, "nothing listens there, which may be the word of a proxy", id="gone, behind a proxy"),
        pytest.param(True, b"", "server 'n' at {} may still have messages: it does not answer", id="it is silent"),
        pytest.param(True, REFUSES, "it cannot be asked: the server refuses the credentials", id="it lets nobody in"),
    ],
)
def test_a_server_that_is_gone_silent_or_closed_to_us(own: bool, says: bytes | None, why: str | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_probe, "SETTLE", 0.01)
        address = f"127.0.0.1:{lasting_port() if says is None else there.getsockname()[1]}"

        def answer() -> None:
            peer, _ = there.accept()
            with peer, suppress(ConnectionError):
                peer.sendall(says or b"")
                while peer.recv(4_096):
                    pass

        with ThreadPoolExecutor(1) as beside:
            answered = None if says is None else beside.submit(answer)
            settings = NatsSettings((f"nats://{address}",), connect_timeout=TIMEOUT if says else 0.2)
            found = why_unfenced(settings, SentTo("n", "id", address, own), {"T": "t.a"})
            assert (why.format(address) in found["T"]) if why else not found
            if answered is not None:
                answered.result(TIMEOUT)
        there.setblocking(False)
        with pytest.raises(BlockingIOError):
            there.accept()  # there is no connection beside its own
