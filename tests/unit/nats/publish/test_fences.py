"""Which sends of a bridge may still be stored: over its connection, and over those that it had before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mama_spark.contracts.batch_ledger import SETTLE
from mama_spark.contracts.bridge import OnTheWay
from mama_spark.nats.connection.requests import ExpectedAnswers
from mama_spark.nats.jetstream.server_probe import SentTo
from mama_spark.nats.protocol.client_events import ServerInfo
from mama_spark.nats.publish import fences as module
from mama_spark.nats.publish.fences import Fences, RowsOfStream
from mama_spark.nats.settings import NatsSettings
from mama_spark.testing.waiting import eventually

A, B = SentTo("a", "A1", "127.0.0.1:1", True), SentTo("b", "B1", "127.0.0.1:2", True)
ANSWER, NOBODY_THERE = SimpleNamespace(status=0, payload=b"{}"), SimpleNamespace(status=503, payload=b"")


class Connection:
    """Notes what is asked, and has a clock."""

    def __init__(self) -> None:
        self.now, self.asked, self.subjects = 100.0, list[Callable[[Any], None]](), list[str]()
        self.answers = ExpectedAnswers(b"_INBOX.")
        self.lead_to(A)

    def lead_to(self, server: SentTo) -> None:
        self.info = ServerInfo(server.name, id=server.id, address=server.address)
        host, port = server.address.split(":")
        current = SimpleNamespace(host=host, address=server.address, port=port)
        self.driver = SimpleNamespace(servers=SimpleNamespace(current=current), peer="")

    def publish(self, subject: str, payload: bytes, reply: bytes, headers: dict[str, str]) -> None:
        assert (payload, headers) == (b"", {"Nats-Expected-Stream": "?"})
        self.asked.append(lambda answer: self.answers.take(SimpleNamespace(subject=reply, **vars(answer))))  # type: ignore[arg-type]
        self.subjects.append(subject)


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def fences(connection: Connection) -> Fences:
    return Fences(NatsSettings(), connection, lambda: {"S": "t"}, lambda: connection.now)  # type: ignore[arg-type]


def ask(fences: Fences, *tokens: int, others: Sequence[int] = ()) -> OnTheWay | None:
    """:param others: those of another stream"""
    numbers = np.array([*tokens, *others], np.int64)
    of = [RowsOfStream("S", "t", np.arange(len(tokens)))]
    of += [RowsOfStream("O", "o", np.arange(len(tokens), len(numbers)))] if others else []
    return fences.on_the_way(numbers, of)


def held(fences: Fences, *tokens: int, others: Sequence[int] = ()) -> list[int]:
    there = ask(fences, *tokens, others=others)
    return [] if there is None else np.array([*tokens, *others])[there.rows].tolist()


def test_sends_are_certain_when_the_leader_has_answered_behind_them_twice(
    fences: Fences, connection: Connection
) -> None:
    fences.sent = 10
    assert held(fences, 3, 9) == [3, 9]
    fences.sent = 20
    assert held(fences, 9, 15) == [9, 15]
    assert len(connection.asked) == 1, "once for all"
    connection.asked[0](NOBODY_THERE)
    connection.now += 10
    assert held(fences, 9) == [9]
    assert len(connection.asked) == 2, "a leader may be there by now"
    assert len(connection.answers) == 1, "however often it is asked"
    connection.asked[0](ANSWER)
    assert held(fences, 9) == [9]
    connection.now += SETTLE
    assert held(fences, 9) == [9], "the leader may have stood still"
    connection.asked[0](ANSWER)
    assert held(fences, 9) == [9], "this was asked before"
    connection.asked[2](ANSWER)
    assert held(fences, 9, 15) == [15]
    assert len(connection.asked) == 4, "about the others"


def test_what_was_sent_over_another_connection_is_certain_when_its_server_says_so(
    fences: Fences, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = ["silent"]
    monkeypatch.setattr(module, "_PROBE_AGAIN", 0.001)
    monkeypatch.setattr(
        module, "why_unfenced", lambda settings, server, topics: {"S": why[0]} if why and server == A else {}
    )
    fences.sent = 10
    fences.disconnected()
    connection.lead_to(B)
    fences.connected()
    assert fences.sent_to() == (A.text, B.text)
    fences.sent = 12
    assert held(fences, 3) == [3]
    assert not connection.asked, "nothing of the present one is in doubt"
    assert ask(fences, 3).why, "it says so from the beginning"  # type: ignore[union-attr]
    eventually(lambda: (there := ask(fences, 3)) is not None and there.why == "silent", "it is asked")
    assert ask(fences, 3).since == 100.0  # type: ignore[union-attr]
    why.clear()
    eventually(lambda: not held(fences, 3), "it has said so")
    assert held(fences, 3, 11) == [11]
    assert fences.sent_to() == (B.text,)


def test_a_stream_without_a_leader_holds_no_rows_of_others(
    fences: Fences, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: set[threading.Thread] = set()

    def why_unfenced(settings: object, server: SentTo, topics: dict[str, str]) -> dict[str, str]:
        probes.add(threading.current_thread())
        return dict.fromkeys(set(topics) - {"S"}, "no leader")

    monkeypatch.setattr(module, "_PROBE_AGAIN", 0.001)
    monkeypatch.setattr(module, "why_unfenced", why_unfenced)
    fences.sent = 10
    assert held(fences, 1, 2, others=[3]) == [1, 2, 3]
    assert connection.subjects == ["t", "o"]
    connection.asked[0](ANSWER)
    held(fences, 1)
    connection.now += SETTLE
    held(fences, 1)
    connection.asked[2](ANSWER)
    assert held(fences, 1, 2, others=[3]) == [3]
    fences.sent = 20
    fences.disconnected()
    connection.lead_to(B)
    fences.connected()
    eventually(lambda: held(fences, 11, others=[3, 12]) == [3, 12], "the probe of the one says that all is there")
    assert fences.sent_to() == (A.text, B.text), "the other one is waited for"
    fences.close()
    (probe,) = probes
    probe.join()


def test_a_connection_that_nothing_was_sent_over_is_not_asked_about(fences: Fences, connection: Connection) -> None:
    fences.disconnected()
    connection.lead_to(B)
    fences.connected()
    assert fences.sent_to() == (B.text,)


def test_a_server_is_noted_with_what_tells_it_from_others() -> None:
    assert SentTo.of(A.text) == A
    assert str(A) == "server 'a' at 127.0.0.1:1"
