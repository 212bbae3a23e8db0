"""Whether messages that were sent to a server which was left may still be stored, asked of real servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.jetstream import server_probe
from mama_spark.nats.jetstream.server_probe import SentTo, why_unfenced
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings

from tests.support.nats.nats_servers import Admin
from tests.support.ports import lasting_port


@pytest.fixture
def settings(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> NatsSettings:
    monkeypatch.setattr(server_probe, "SETTLE", 0.01)
    return NatsSettings((nats_server.url,), connect_timeout=5.0)


@pytest.fixture
def server(settings: NatsSettings) -> Iterator[SentTo]:
    """With a stream that takes ``t.a``."""
    with Admin(settings.servers[0]) as admin:
        admin.create_stream("T", ["t.>"])
    connection = SocketConnection(settings)
    connection.open()
    yield SentTo.over(connection)
    connection.close()


@pytest.mark.parametrize(
    ("other", "topic", "says"),
    [
        ({}, "t.a", None),
        ({"id": "another process"}, "t.a", None),
        ({}, "nobody", "the leader of the stream does not answer through it"),
        ({"name": "another"}, "t.a", "another one answers there"),
    ],
    ids=["it is alive", "it was started again", "no leader", "another server"],
)
def test_a_server_that_answers(
    settings: NatsSettings, server: SentTo, other: dict[str, str], topic: str, says: str | None
) -> None:
    assert server.own
    found = why_unfenced(settings, replace(server, **other), ["t.b", topic])  # type: ignore[arg-type]
    assert (says in found[topic]) if says else not found
    assert "t.b" not in found or other, "the leader of this stream answers"
    with Admin(settings.servers[0]) as admin:
        assert not admin.info("T")["state"]["last_seq"], "what it is asked with is not stored"


def test_a_server_that_refuses_the_login_is_told_so(tmp_path: Path) -> None:
    with NatsServer(tmp_path, config="authorization { user: me, password: mine }") as server:
        known = SentTo(server.name, "id", server.url.removeprefix("nats://"), True)
        found = why_unfenced(NatsSettings((server.url,), connect_timeout=5.0), known, ["t.a"])["t.a"]
        assert server.ask("varz")["total_connections"] == 1, "there is no connection beside its own"
    assert "it cannot be asked: the server refuses the credentials: Authorization Violation" in found


def test_a_server_that_is_gone_and_one_that_is_silent(settings: NatsSettings, server: SentTo) -> None:
    gone = replace(server, address=f"127.0.0.1:{lasting_port()}")
    assert not why_unfenced(settings, gone, ["t.a"])
    assert "the word of a proxy" in why_unfenced(settings, replace(gone, own=False), ["t.a"])["t.a"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = why_unfenced(replace(settings, connect_timeout=0.2), replace(server, address=address), ["t.a"])
    assert found["t.a"] == f"server {server.name!r} at {address} may still have messages: it does not answer"
