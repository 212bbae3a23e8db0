"""When messages to a replicated stream need not go alone any more, and a batch whose last answer is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from mama_spark.contracts.errors import OutcomeUnknown
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.connection.requests import ExpectedAnswers
from mama_spark.nats.publish import fast_ingest
from mama_spark.nats.publish.ack_queue import AckQueue
from mama_spark.nats.publish.fast_ingest import IDLE, FastIngestPublisher
from mama_spark.nats.publish.undecided import ALONE_IN_ORDER, UndecidedStreams
from mama_spark.nats.settings import NatsSettings

from tests.support.tables import each

YOUNG, OLD = "2026-01-01T00:00:00.5Z", "2025-12-31T23:58:00Z"


class Connection:
    def __init__(self) -> None:
        self.answers, self.asked = ExpectedAnswers(b"_INBOX."), list[tuple[str, bytes]]()

    up, inbox, next_token = True, b"_INBOX.abcdef.", 10

    def write(self, frames: bytes) -> None:
        raise AssertionError("a batch begins")

    def publish(self, subject: str, payload: bytes, reply: bytes) -> None:
        self.asked.append((subject, reply))

    def answer(self, payload: bytes, question: int = -1) -> None:
        frame: Any = SimpleNamespace(subject=self.asked[question][1], payload=payload)
        assert self.answers.take(frame)


def streams_over(connection: Any, clock: Callable[[], float] = lambda: 0.0, **settings: Any) -> UndecidedStreams:
    return UndecidedStreams(connection, NatsSettings(max_in_flight=3, **settings), clock)


def info(since: str | None, last: int = 7) -> bytes:
    """Of a stream that knows ids for a minute."""
    cluster = {"leader": "n1"} | ({"leader_since": since} if since else {})
    config = {"name": "S", "duplicate_window": 60_000_000_000}
    found = {"config": config, "cluster": cluster, "ts": "2026-01-01T00:00:01Z"}
    return orjson.dumps({**found, "state": {"last_seq": last}})


@each(
    "answer, alone",
    [
        pytest.param(info(OLD), False, id="it leads for longer than ids are known"),
        pytest.param(info(YOUNG), True, id="it leads since a moment ago"),
        pytest.param(info(None), True, id="it does not say since when"),
        pytest.param(info(OLD, last=6), True, id="it leads no more, and does not know it: it lacks the message"),
        pytest.param(b'{"error": {"code": 503, "err_code": 10008}}', True, id="nobody leads"),
        pytest.param(b"", True, id="nobody is there"),
    ],
)
def test_one_that_is_stored_by_a_leader_since_long_is_enough(answer: bytes, alone: bool) -> None:
    streams = streams_over(connection := Connection())
    assert "S" in streams
    streams.stored_anew("S", 7)
    assert "S" in streams, "nobody has said who leads"
    connection.answer(answer)
    assert [subject for subject, _ in connection.asked] == ["$JS.API.STREAM.INFO.S"]
    assert ("S" in streams) is alone


def test_else_as_many_as_an_earlier_attempt_may_have_had_in_flight() -> None:
    streams, seen = streams_over(Connection()), []
    for sequence in range(3):
        seen.append("S" in streams)
        streams.stored_anew("S", sequence)
    assert seen == [True] * 3
    assert "S" not in streams
    assert "O" in streams, "another stream"


def test_a_repetition_in_another_order_waits_for_such_a_leader() -> None:
    """What an earlier attempt had in flight may be its last messages. Later, only its own are at stake."""
    now = [0.0]
    streams = streams_over(connection := Connection(), lambda: now[0], exactly_once=True)
    for sequence in range(1, 9):
        streams.stored_anew("S", sequence)
    connection.answer(info(YOUNG, last=8))
    assert "S" in streams
    assert len(connection.asked) == 1
    now[0] = 1.0
    streams.stored_anew("S", 9)
    assert len(connection.asked) == 2, "it leads longer now"
    connection.answer(info(OLD, last=9))
    assert "S" not in streams
    streams.seen("S")
    for sequence in range(10, 13):
        assert "S" in streams
        streams.stored_anew("S", sequence)
    assert "S" not in streams
    streams.close()
    streams.seen("S")
    assert not len(connection.answers)


def test_what_a_batch_did_not_store_begins_it_anew() -> None:
    streams = streams_over(connection := Connection())
    streams.stored_anew("S", 1)
    connection.answer(info(OLD))
    streams.seen("S")
    assert "S" in streams
    streams.stored_anew("S", 7)
    connection.answer(info(OLD), question=0)
    assert "S" in streams, "asked before that"
    connection.answer(info(OLD))
    assert "S" not in streams
    streams.close()
    assert not len(connection.answers)


@each("how", ["lost", "late", "refused"])
def test_a_message_that_was_sent_alone_goes_alone_again(how: str) -> None:
    """Though a leader since long has stored another one: it may have seen this one, too, and lost the lead."""
    connection, plain, queue = Connection(), list[int](), AckQueue()
    router: Any = SimpleNamespace(dedup_is_safe=lambda _: False)
    settings = NatsSettings(max_in_flight=3, ordered=True, wait_timeout=-IDLE)
    given: Any = (connection, queue, settings, router, lambda _, token: plain.append(token), queue.wait)
    fast = FastIngestPublisher(*given)

    def send(token: int) -> int:
        return fast.send(MessageBatch.of(["s.a"] * 2, [b"1", b"2"]), token, lambda _: "S")

    assert send(0) == 1
    fast.alone.on_answer(np.array([0]), stored_anew=7)
    assert send(1) == 1
    connection.answer(info(OLD))
    assert send(2) == 0, "the one before it may be lost, and would be stored behind a batch"
    if how == "lost":
        fast.alone.on_disconnected()
        assert send(2) == 0, "the publisher does not know yet, and another would overtake"
    elif how == "late":
        fast.poll(0, 1)
    else:
        fast.alone.on_answer(np.array([1]), refused=True)
        fast.alone.on_answer(np.arange(2, 2 + ALONE_IN_ORDER))
    queue.wait(0, 1)
    assert send(2) == 1
    assert plain == [0, 1, 2]


def test_a_batch_whose_last_answer_is_lost_with_a_leader_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, nothing is sent beside it."""
    now, queue = [100.0], AckQueue()
    monkeypatch.setattr(fast_ingest, "time", SimpleNamespace(monotonic=lambda: now[0]))
    connection: Any = SimpleNamespace(
        up=True, inbox=b"_INBOX.a.", next_token=0, write=lambda frames: None, publish=lambda *message: None
    )
    router: Any = SimpleNamespace(dedup_is_safe=lambda stream: True)
    settings = NatsSettings(ordered=True, wait_timeout=5.0)
    one = FastIngestPublisher(
        connection, queue, settings, router, lambda *rows: None, lambda timeout, want: queue.take()
    )
    rows = MessageBatch.of(["t"] * 3, [b"x"] * 3)
    assert one.send(rows, 0, lambda topic: "S") == 3
    one.end_all()
    now[0] += 5.0
    assert not one.poll(0.0, 1).refusals
    assert one.send(rows, 3, lambda topic: "S") == 0
    now[0] += 1.0
    one.poll(0.0, 1)
    (refusals,) = one.poll(0.0, 1).refusals
    assert (refusals.tokens.tolist(), type(refusals.error)) == ([0, 1, 2], OutcomeUnknown)
    assert one.send(rows, 3, lambda topic: "S") == 3
