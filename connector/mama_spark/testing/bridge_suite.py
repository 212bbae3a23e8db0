"""Tests that every publisher bridge must pass. Inherit, give a factory and an oracle; that is the whole test::

    class TestMemory(BridgeSuite):
        @pytest.fixture
        def site(self):
            yield SuiteSetup(make=..., stored=..., silent=...)

The bridges that the factory gives are not open; the suite opens and closes them. A bridge names what it cannot do in
:attr:`BridgeSuite.without`; the rules that this excuses are recorded as ``excused`` in the report of their tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from ..contracts.bridge import Ack, PublisherBridge, Refusals
from ..contracts.errors import BadRow, BadTopic, PublishError, TooLarge
from ..contracts.message import MessageBatch
from ..options.window_config import RetryPolicy, WindowConfig
from ..publishing.batch_publisher import BatchPublisher
from ..publishing.window.flight import FlightState
from ..publishing.window.flight_batch import FlightBatch
from .waiting import eventually

TIMEOUT = 120.0  #: seconds for a condition; never reached by a sound bridge


class PublishedMessage(NamedTuple):
    """A stored message as the oracle reads it, without the bridge."""

    sequence: int
    topic: str
    payload: bytes
    headers: dict[str, list[str]]


@dataclass
class SuiteSetup:
    """One middleware, fresh for a test.

    :ivar make: a new bridge to it, not open
    :ivar stored: the stored messages, in order of sequence
    :ivar topics: two topics (or more) that it stores (default: ``t.1``, ``t.2``); it also stores their neighbours
        ``<first tokens>.<anything>``
    :ivar silent: a new bridge of the same kind, not open, that is configured to acknowledge nothing
    :ivar refused: headers that the middleware itself refuses; only for a bridge that claims to keep order
    """

    make: Callable[[], PublisherBridge]
    stored: Callable[[], list[PublishedMessage]]
    topics: list[str] = field(default_factory=lambda: ["t.1", "t.2"])
    silent: Callable[[], PublisherBridge] | None = None
    refused: dict[str, list[str]] | None = None


class Answers:
    """All answers of a bridge, by token."""

    def __init__(self) -> None:
        self.sequence: dict[int, int] = {}
        self.duplicate: dict[int, bool] = {}
        self.error: dict[int, PublishError] = {}

    def add(self, bridge: PublisherBridge, timeout: float, want: int = 1) -> None:
        polled = bridge.poll(timeout, want)
        for acks in polled.acks:
            for i, token in enumerate(acks.tokens.tolist()):
                assert token not in self.sequence, "one token, two answers"
                self.sequence[token] = -1 if acks.sequences is None else int(acks.sequences[i])
                self.duplicate[token] = acks.duplicates is not None and bool(acks.duplicates[i])
        for refusals in polled.refusals:
            self._refused(refusals)

    def _refused(self, refusals: Refusals) -> None:
        for token in refusals.tokens.tolist():
            assert token not in self.error, "one token, two answers"
            self.error[token] = refusals.error

    def __len__(self) -> int:
        return len(self.sequence) + len(self.error)


def publish(bridge: PublisherBridge, batch: MessageBatch, first: int = 0) -> Answers:
    """Send everything and wait for every answer, as a publisher does."""
    answers, sent, until = Answers(), 0, time.monotonic() + TIMEOUT
    while len(answers) < len(batch):
        assert time.monotonic() < until, f"{len(answers)} answers of {len(batch)}, {sent} sent"
        if sent < len(batch):
            sent += bridge.send(batch.slice(sent, len(batch) - sent), first + sent)
            if sent == len(batch):
                bridge.flush()
        answers.add(bridge, 0.05, want=max(1, sent - len(answers)))
    return answers


def _stored(site: SuiteSetup, count: int) -> list[PublishedMessage]:
    """The stored messages, once there are ``count``: without acknowledgements they may be under way."""
    eventually(lambda: len(site.stored()) >= count, f"{count} messages are stored")
    return site.stored()


#: Abilities that a bridge may lack.
OPTIONAL = ("sequence", "dedup", "headers", "ordered")

Record = Callable[[str, object], None]


class BridgeSuite:
    """Rules of :class:`mama_spark.contracts.bridge.PublisherBridge`, one test each. ``without``: those of ``sequence``,
    ``dedup``, ``headers`` and ``ordered`` that the bridge lacks."""

    without: ClassVar[frozenset[str]] = frozenset()

    def _excused(self, record_property: Record, capability: str) -> None:
        assert capability in self.without, f"{type(self).__name__} does not say that it is without {capability!r}"
        record_property("excused", f"{type(self).__name__} without {capability}")

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError("give a fixture `site` that returns or yields a SuiteSetup")

    @pytest.fixture
    def bridge(self, site: SuiteSetup) -> Iterator[PublisherBridge]:
        bridge = site.make()
        bridge.open()
        yield bridge
        bridge.close()

    def _batch(self, site: SuiteSetup, n: int, *, ids: bool = False) -> MessageBatch:
        topics = [site.topics[i % 2] for i in range(n)]
        return MessageBatch.of(topics, [b"%d\r\n\x00\xff" % i for i in range(n)], None,
                               [f"id-{i}" for i in range(n)] if ids else None)  # fmt: skip

    def test_each_acknowledged_message_is_stored_as_it_was_sent(
        self, site: SuiteSetup, bridge: PublisherBridge
    ) -> None:
        batch = self._batch(site, 500)
        answers = publish(bridge, batch, first=1000)
        assert not answers.error
        assert sorted(answers.sequence) == list(range(1000, 1500)), "tokens count up from the first one"
        stored = _stored(site, 500)
        assert [(s.topic, s.payload) for s in stored] == list(
            zip(batch.topics.to_pylist(), batch.payloads.to_pylist(), strict=True)
        )

    def test_sequences_rise_and_point_at_the_stored_message(
        self, site: SuiteSetup, bridge: PublisherBridge, record_property: Record
    ) -> None:
        batch = self._batch(site, 200)
        answers = publish(bridge, batch)
        if not bridge.capabilities.sequence:
            assert set(answers.sequence.values()) == {-1}, "a bridge that tells sequences must say so"
            self._excused(record_property, "sequence")
            return
        by_sequence = {s.sequence: s.payload for s in _stored(site, 200)}
        order = [answers.sequence[t] for t in sorted(answers.sequence)]
        assert order == sorted(order)
        assert [by_sequence[s] for s in order] == batch.payloads.to_pylist()

    def test_the_same_id_is_stored_once_if_the_bridge_deduplicates(
        self, site: SuiteSetup, bridge: PublisherBridge, record_property: Record
    ) -> None:
        batch = self._batch(site, 50, ids=True)
        first = publish(bridge, batch)
        again = publish(bridge, batch, first=50)
        assert not first.error
        assert not again.error
        count = 50 if bridge.capabilities.dedup else 100
        assert len(_stored(site, count)) == count
        if not bridge.capabilities.dedup:
            self._excused(record_property, "dedup")
            return
        if not bridge.capabilities.sequence:
            self._excused(record_property, "sequence")
            return
        assert not any(first.duplicate.values())
        assert all(again.duplicate.values())
        assert list(again.sequence.values()) == list(first.sequence.values())

    def test_headers_come_back(self, site: SuiteSetup, bridge: PublisherBridge, record_property: Record) -> None:
        headers: list[dict[str, list[str]] | None] = [
            {"A-b": ["1", "2"], "C": ["x y"]},
            None,
            {"Zoë".encode().hex(): ["é"]},
        ]
        batch = MessageBatch.of([site.topics[0]] * 3, [b"1", b"2", b"3"], headers)
        bad = bridge.prepare(batch).rejected
        if not bridge.capabilities.headers:
            assert [row for row, _ in bad] == [0, 2]
            self._excused(record_property, "headers")
            return
        assert not bad
        publish(bridge, batch)
        assert [s.headers for s in _stored(site, 3)] == [h or {} for h in headers]

    @pytest.mark.parametrize("topic", ["a.*", "a.>", ">", "*", "", "a..b", ".a", "a.", "a b", "a\r\nb", "a\tb"])
    def test_prepare_flags_a_topic_that_is_no_place(
        self, site: SuiteSetup, bridge: PublisherBridge, topic: str
    ) -> None:
        batch = MessageBatch.of([site.topics[0], topic, site.topics[1]], [b"", b"", b""])
        ((row, error),) = bridge.prepare(batch).rejected
        assert row == 1
        assert isinstance(error, BadTopic)

    def test_a_topic_of_exactly_the_longest_length_is_stored(self, site: SuiteSetup, bridge: PublisherBridge) -> None:
        head = site.topics[0].rpartition(".")[0] + "."
        longest = head + "x" * (bridge.capabilities.max_topic - len(head))
        for batch, first in ((MessageBatch.of([longest], [b"alone"]), 0),
                             (MessageBatch.of([longest] * 20, [b"more"] * 20), 1)):  # fmt: skip
            assert bridge.prepare(batch).rejected == []
            assert not publish(bridge, batch, first).error
        assert [s.topic for s in _stored(site, 21)] == [longest] * 21

    def test_prepare_flags_a_topic_that_is_too_long(self, site: SuiteSetup, bridge: PublisherBridge) -> None:
        topic = "x" * (bridge.capabilities.max_topic + 1)
        ((row, error),) = bridge.prepare(MessageBatch.of([site.topics[0], topic], [b"", b""])).rejected
        assert row == 1
        assert isinstance(error, BadTopic)

    @pytest.mark.parametrize(
        ("name", "value"), [("a", "x\r\nNats-Msg-Id: 1"), ("a", "x\ny"), ("a\r\nb", "x"), ("", "x"), ("a:b", "x")]
    )
    def test_prepare_flags_a_header_that_could_inject(
        self, site: SuiteSetup, bridge: PublisherBridge, name: str, value: str
    ) -> None:
        batch = MessageBatch.of([site.topics[0]] * 2, [b"", b""], [None, {name: [value]}])
        ((row, error),) = bridge.prepare(batch).rejected
        assert row == 1
        assert isinstance(error, BadRow)

    def test_payload_and_headers_up_to_the_limit_pass_and_beyond_it_are_flagged(
        self, site: SuiteSetup, bridge: PublisherBridge, record_property: Record
    ) -> None:
        limit = bridge.capabilities.max_payload
        sizes = [limit, limit + 1]
        bad = bridge.prepare(MessageBatch.of([site.topics[0]] * 2, [bytes(s) for s in sizes])).rejected
        assert [(row, type(error)) for row, error in bad] == [(1, TooLarge)]
        if not bridge.capabilities.headers:
            self._excused(record_property, "headers")
            return
        batch = MessageBatch.of([site.topics[0]], [bytes(limit - 5)], [{"name": ["a value of some bytes"]}])
        assert [type(error) for _, error in bridge.prepare(batch).rejected] == [TooLarge]

    def test_a_message_of_the_largest_size_is_stored(self, site: SuiteSetup, bridge: PublisherBridge) -> None:
        batch = MessageBatch.of([site.topics[0]], [b"x" * min(bridge.capabilities.max_payload, 8 << 20)])
        assert not bridge.prepare(batch).rejected
        assert not publish(bridge, batch).error
        assert [s.payload for s in _stored(site, len(batch))] == batch.payloads.to_pylist()

    def test_prepare_passes_good_rows_and_bears_anything_in_bad_ones(
        self, site: SuiteSetup, bridge: PublisherBridge
    ) -> None:
        assert bridge.prepare(self._batch(site, 10)).rejected == []
        import pyarrow as pa

        nulls = MessageBatch(
            pa.array([site.topics[0], None], pa.string()).dictionary_encode(), pa.array([b"", None], pa.binary())
        )
        assert 0 not in dict(bridge.prepare(nulls).rejected)

    def test_poll_with_nothing_under_way_returns_nothing_within_its_timeout(self, bridge: PublisherBridge) -> None:
        for timeout in (0.0, 0.05):
            began = time.monotonic()
            assert not bridge.poll(timeout)
            assert time.monotonic() - began >= timeout

    def test_poll_wakes_before_its_timeout_when_what_it_wants_is_there(
        self, site: SuiteSetup, bridge: PublisherBridge
    ) -> None:
        assert bridge.send(self._batch(site, 10), 0) == 10
        bridge.flush()
        answers, began = Answers(), time.monotonic()
        while len(answers) < 10 and time.monotonic() - began < TIMEOUT:
            answers.add(bridge, TIMEOUT, want=10 - len(answers))
        assert len(answers) == 10
        assert time.monotonic() - began < TIMEOUT

    def test_flush_answers_everything_and_may_be_repeated(self, site: SuiteSetup, bridge: PublisherBridge) -> None:
        bridge.flush()
        for first in (0, 7):
            answers = publish(bridge, self._batch(site, 7), first)
            assert len(answers) == 7
        bridge.flush()
        assert not bridge.poll(0.05)

    def test_slices_are_sent_as_slices(self, site: SuiteSetup, bridge: PublisherBridge) -> None:
        whole = self._batch(site, 30, ids=True)
        assert not publish(bridge, whole.slice(10, 5)).error
        assert not publish(bridge, whole.take(np.array([3, 1], np.int64)), first=5).error
        rows = [10, 11, 12, 13, 14, 3, 1]
        assert [s.payload for s in _stored(site, len(rows))] == [whole.payloads[r].as_py() for r in rows]

    def test_close_may_be_repeated_and_comes_after_a_bridge_that_never_opened(self, site: SuiteSetup) -> None:
        never = site.make()
        never.close()
        never.close()
        opened = site.make()
        opened.open()
        opened.close()
        opened.close()
        assert "closed" in repr(opened).lower()

    def test_order_is_kept_behind_what_the_middleware_refuses(
        self, site: SuiteSetup, bridge: PublisherBridge, record_property: Record
    ) -> None:
        """A bridge that claims order refuses what follows a refused message, too; it goes again in order."""
        if not bridge.capabilities.ordered:
            self._excused(record_property, "ordered")
            return
        assert site.refused is not None, "the suite needs a message that the middleware refuses"
        n, rejected = 300, {50, 51, 120, 299}
        headers = [site.refused if i in rejected else None for i in range(n)]
        batch = MessageBatch.of([site.topics[0]] * n, [b"%d" % i for i in range(n)], headers,
                                [f"id-{i}" for i in range(n)])  # fmt: skip
        policy = WindowConfig(64, 32, 30.0, RetryPolicy.doubling(0.01, 0.1, TIMEOUT), ordered=True)
        (block,) = self._drained(bridge, policy, batch)
        assert set(np.flatnonzero(block.state != FlightState.ACKED).tolist()) == rejected
        kept = [i for i in range(n) if i not in rejected]
        assert [int(s.payload) for s in _stored(site, len(kept))] == kept

    def test_without_acknowledgements_handing_over_is_the_end_and_closing_loses_nothing(self, site: SuiteSetup) -> None:
        assert site.silent is not None, "the suite needs a bridge that acknowledges nothing"
        bridge = site.silent()
        bridge.open()
        assert bridge.capabilities.ack is Ack.NONE
        assert not bridge.capabilities.sequence
        batch = self._batch(site, 3000)
        try:
            (block,) = self._drained(bridge, WindowConfig(4096, 2048), batch)
        finally:
            bridge.close()
        assert (block.state == FlightState.PUBLISHED).all()
        assert [s.payload for s in _stored(site, len(batch))] == batch.payloads.to_pylist()

    def _drained(self, bridge: PublisherBridge, policy: WindowConfig, batch: MessageBatch) -> list[FlightBatch]:
        finished: list[FlightBatch] = []
        publisher = BatchPublisher(bridge, policy, on_finished=finished.append)
        publisher.start()
        try:
            publisher.put(batch)
            publisher.drain()
        finally:
            publisher.stop()
        return finished

    def test_two_bridges_do_not_see_each_others_answers(self, site: SuiteSetup, bridge: PublisherBridge) -> None:
        other = site.make()
        other.open()
        try:
            assert len(publish(bridge, self._batch(site, 20))) == 20
            assert not other.poll(0.05)
            assert len(publish(other, self._batch(site, 20))) == 20
        finally:
            other.close()
        assert len(_stored(site, 40)) == 40

    def test_capabilities_are_plausible(self, bridge: PublisherBridge) -> None:
        able = bridge.capabilities
        assert {name for name in OPTIONAL if not getattr(able, name)} == self.without, "no rule is excused by mistake"
        assert able.max_payload > 0
        assert able.max_topic > 0
        assert able.ack is not Ack.NONE or not able.sequence
