"""A publisher that never gives up keeps what it was given, over refusals, outages and bridges that end for good."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import pytest
from mama_spark.contracts.bridge import PollResult, ValidationResult
from mama_spark.contracts.errors import ConfigError, PublishError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.publishing.resilient_publisher import MAX_UNSETTLED_BATCHES, ResilientPublisher
from mama_spark.testing.waiting import eventually


def batch(first: int, n: int = 3) -> MessageBatch:
    numbers = range(first, first + n)
    return MessageBatch.of(["t"] * n, [str(i).encode() for i in numbers], ids=[f"id-{i}" for i in numbers])


@contextmanager
def writing(
    broker: MemoryBroker, rejected: list[tuple[MessageBatch, Sequence[PublishError]]] | None = None
) -> Iterator[ResilientPublisher]:
    """A publisher that has stored its first three messages."""
    writer = ResilientPublisher(
        lambda: MemoryBridge(broker.name),
        wait_timeout=0.2,
        on_rejected=None if rejected is None else lambda rows, errors: rejected.append((rows, errors)),
    )
    with closing(writer):
        assert writer.write(batch(0))
        assert writer.drain(30)
        yield writer


def after(tries: int) -> Callable[[], bool]:
    """Whether it shall give up: when it was asked so often."""
    asked = itertools.count(1)
    return lambda: next(asked) > tries


def stored(broker: MemoryBroker) -> list[int]:
    return sorted({int(m.payload) for m in broker.messages()})


@pytest.mark.parametrize("fault", ["ack", "lose", "503", "late", "dup", "disconnect", "kill"])
def test_everything_is_stored_whatever_happens(broker: MemoryBroker, fault: str) -> None:
    with writing(broker) as writer:
        broker.then([fault])
        for first in range(3, 15, 3):
            assert writer.write(batch(first))
        assert writer.drain(30)
    assert stored(broker) == list(range(15))
    assert (writer.stored, writer.waiting) == (15, 0)


def test_write_waits_while_the_middleware_is_away(broker: MemoryBroker) -> None:
    with writing(broker) as writer:
        broker.up = False
        taken = 0
        for _ in range(MAX_UNSETTLED_BATCHES + 2):
            taken += writer.write(batch(100 + 3 * taken), lambda: True)
        assert taken <= MAX_UNSETTLED_BATCHES
        assert writer.waiting == 3 * taken
        assert not writer.drain(0.05)
        broker.up = True
        eventually(lambda: writer.drain(1.0), "all is stored")
    assert len(broker.messages()) == 3 + 3 * taken


def test_a_bridge_that_ended_is_replaced_once_the_middleware_is_back(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with writing(broker) as writer:
        broker.then(["kill"])
        assert writer.write(batch(3))
        eventually(lambda: writer._publisher is not None and writer._publisher._death is not None, "the bridge ended")
        broker.up = False
        assert not writer.write(batch(6), after(20)), "it has tried twice"
        assert (writer.stored, writer.waiting, writer._publisher) == (3, 3, None)
        broker.up = True
        eventually(lambda: writer.drain(1.0), "all is stored")
    assert stored(broker) == list(range(6))
    lines = [record.getMessage() for record in caplog.records]
    nobody = [line for line in lines if "is down" in line]
    assert len(nobody) == 1, "one warning for each kind of error, however often it is tried"
    assert nobody[0].startswith("the record log takes nothing, 3 messages wait and are sent again")
    assert lines[-1] == "the record log takes messages again"


def test_what_waits_is_sent_by_another_bridge_although_nothing_more_is_written(broker: MemoryBroker) -> None:
    with writing(broker) as writer:
        broker.then(["kill"])
        assert writer.write(batch(3))

        def settled() -> bool:
            writer.reconnect()
            return not writer.waiting

        eventually(settled, "all is stored")
    assert stored(broker) == list(range(6))


def test_the_first_message_finds_out_that_nobody_answers(broker: MemoryBroker) -> None:
    broker.up = False
    with closing(ResilientPublisher(lambda: MemoryBridge(broker.name))) as writer, pytest.raises(Unavailable):
        writer.write(batch(0))


def test_before_anything_is_stored_it_is_told_that_no_stream_takes_the_messages(broker: MemoryBroker) -> None:
    class NoStream(MemoryBridge):
        missing = True

        def prepare(self, batch: MessageBatch) -> ValidationResult:
            if self.missing:
                raise ConfigError("no stream takes t")
            return super().prepare(batch)

    with closing(ResilientPublisher(lambda: NoStream(broker.name))) as writer:
        tries = after(30)
        with pytest.raises(ConfigError, match="no stream takes t"):
            list(iter(lambda: writer.write(batch(0), tries), False))
        NoStream.missing = False
        assert writer.drain(30), "what was written waits for the stream"
    assert stored(broker) == [0, 1, 2]


def test_what_is_refused_for_good_is_told(broker: MemoryBroker) -> None:
    rejected: list[tuple[MessageBatch, Sequence[PublishError]]] = []
    with writing(broker, rejected) as writer:
        assert writer.write(MessageBatch.of(["t", "no topic *", "t"], [b"1", b"2", b"3"], ids=["a", "b", "c"]))
        assert writer.drain(30)
    ((rows, errors),) = rejected
    assert rows.payloads.to_pylist() == [b"2"]
    assert len(errors) == 1
    assert (writer.stored, writer.rejected) == (5, 1)


class AnswersWhenFlushed(MemoryBridge):
    """As a middleware that answers for many messages at once, or when it is asked."""

    flushed = False

    def flush(self) -> None:
        self.flushed = True

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        if not self.flushed:
            return PollResult()
        self.flushed = False
        return super().poll(timeout, want)


def test_answers_are_asked_for_once_nothing_more_can_be_written_without_them(broker: MemoryBroker) -> None:
    made = ResilientPublisher(lambda: AnswersWhenFlushed(broker.name), wait_timeout=3600, flush_after=3600)
    with closing(made) as writer:
        tries = after(300)
        for first in range(0, 30, 3):
            assert writer.write(batch(first), tries), "it waits for an answer that nobody asked for"
        assert writer.drain(60)
    assert stored(broker) == list(range(30))
