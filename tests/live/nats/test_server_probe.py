"""Whether messages that were sent to a server which was left may still be stored, asked of real servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.jetstream import server_probe
from mama_spark.nats.jetstream.server_probe import SentTo, why_unfenced
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings

from tests.support.nats.nats_servers import Admin
from tests.support.ports import lasting_port

ANOTHER, ELSE = {"name": "another", "id": "another process"}, "another one answers there"
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


def test_a_server_that_refuses_the_login_is_told_so(tmp_path: Path) -> None:
    with NatsServer(tmp_path, config="authorization { user: me, password: mine }") as server:
        known = SentTo(server.name, "id", server.url.removeprefix("nats://"), True)
        found = why_unfenced(NatsSettings((server.url,), connect_timeout=5.0), known, {"T": "t.a"})["T"]
        assert server.ask("varz")["total_connections"] == 1, "there is no connection beside its own"
    assert "it cannot be asked: the server refuses the credentials: Authorization Violation" in found


def test_a_server_that_is_gone_and_one_that_is_silent(settings: NatsSettings, server: SentTo) -> None:
    gone = replace(server, address=f"127.0.0.1:{lasting_port()}")
    assert not why_unfenced(settings, gone, {"T": "t.a"})
    assert "the word of a proxy" in why_unfenced(settings, replace(gone, own=False), {"T": "t.a"})["T"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = why_unfenced(replace(settings, connect_timeout=0.2), replace(server, address=address), {"T": "t.a"})
    assert found["T"] == f"server {server.name!r} at {address} may still have messages: it does not answer"
