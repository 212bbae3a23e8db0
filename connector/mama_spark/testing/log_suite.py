"""Tests that every log must pass. Inherit, give a site; that is the whole test::

    class TestMemoryLogs(LogSuite):
        @pytest.fixture
        def site(self):
            yield LogSetup(make=..., name=..., fill=..., delete=...)

The bridges that the factory gives are not open; the suite opens and closes them. For a log that cannot do all, the
subclass leaves out tests by ``NAME = None``:

* without headers: ``test_records_come_back_as_they_were_published``, ``test_appended_records_come_back``
* that keeps all records: ``test_deleted_records_are_left_out_and_reported_as_missing``,
  ``test_what_was_missing_when_a_log_was_opened_is_known``, ``test_a_range_whose_end_was_deleted_ends``,
  ``test_a_time_finds_the_first_record_at_or_after_it``
* that is not trimmed: ``test_trim_removes_what_lies_below``, ``test_trim_of_everything_skips_no_sequence``
* that does not deduplicate: ``test_an_id_is_stored_once``
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import pytest

from ..contracts.errors import BadTopic, ConfigError
from ..contracts.message import MessageBatch
from ..contracts.record_log import RecordLog, RecordLogBridge, Records
from ..spark.subscribe.current_rows import current_records, last_of_each

Headers = dict[str, list[str]]
MOST_ROWS = 20_000  #: of one batch
MANY = 12_000  #: records, more than one batch of any log here


class LoggedRecord(NamedTuple):
    """One record, to be compared."""

    sequence: int
    topic: str
    payload: bytes
    headers: Headers | None


@dataclass
class LogSetup:
    """One log, fresh and empty for a test.

    :ivar make: a new bridge to it, not open
    :ivar name: name of the log
    :ivar fill: append by another way, for many messages
    :ivar delete: remove single records, behind the bridge's back; not called if the tests of it are left out
    :ivar root: first part of all topics that the log takes (default: ``t``)
    """

    make: Callable[[], RecordLogBridge]
    name: str
    fill: Callable[[MessageBatch], None]
    delete: Callable[[Sequence[int]], None]
    root: str = "t"


def rows(records: Records) -> Iterator[LoggedRecord]:
    """The records of a batch one by one; checks that all columns have its length."""
    n = len(records)
    assert len(records.times) == len(records.topics) == len(records.payloads) == n
    headers = [None] * n if records.headers is None else records.headers.to_pylist()
    for row in zip(
        records.sequences.tolist(), records.topics.to_pylist(), records.payloads.to_pylist(), headers, strict=True
    ):
        yield LoggedRecord(row[0], row[1], row[2], None if row[3] is None else dict(row[3]))


def everything(batches: Iterable[Records]) -> list[LoggedRecord]:
    """All records of a read; checks that they ascend and that no batch is empty or huge."""
    found: list[LoggedRecord] = []
    for records in batches:
        assert 0 < len(records) <= MOST_ROWS
        found += rows(records)
    assert all(a.sequence < b.sequence for a, b in pairwise(found)), f"each once, in order: {found[:50]}"
    return found


def numbers(batches: Iterable[Records]) -> list[int]:
    return [r.sequence for r in everything(batches)]


class LogReadingRules:
    """Rules of what a log gives to readers, one test each; part of :class:`LogSuite`."""

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError("give a fixture `site` that returns or yields a LogSetup")

    @pytest.fixture
    def bridge(self, site: LogSetup) -> Iterator[RecordLogBridge]:
        bridge = site.make()
        bridge.open()
        yield bridge
        bridge.close()

    @pytest.fixture
    def log(self, site: LogSetup, bridge: RecordLogBridge) -> RecordLog:
        return bridge.log(site.name)

    def _batch(self, site: LogSetup, n: int, first: int = 0) -> MessageBatch:
        topics = [f"{site.root}.{i % 2}" for i in range(first, first + n)]
        return MessageBatch.of(topics, [b"%d" % i for i in range(first, first + n)])

    def test_records_come_back_as_they_were_published(self, site: LogSetup, log: RecordLog) -> None:
        topics = [f"{site.root}.{name}" for name in ("a", "b", "grüße", "a", "a.b.c", "$x-y_z")]
        payloads = [b"", b"\r\n\x00\xff", bytes(range(256)) * 40, b"MSG t.a 1 5\r\nhello\r\n", b"1", b"{}"]
        headers: list[Headers | None] = [
            None,
            {"A": ["1", "2", "1"], "a": ["lower"]},
            {"Empty": [""], "Blanks": ["  two before, two behind  "], "Colons": ["a: b: c"]},
            None,
            {"Street": ["Grüße 🙂"]},
            {f"H{i}": [str(i)] for i in range(50)},
        ]
        site.fill(MessageBatch.of(topics, payloads, headers))
        found = everything(log.read(0, len(topics)))
        assert [(r.topic, r.payload, r.headers) for r in found] == list(zip(topics, payloads, headers, strict=True))
        assert found[-1].sequence == len(topics)

    def test_appended_records_come_back(self, site: LogSetup, log: RecordLog) -> None:
        topics = [f"{site.root}.{name}" for name in ("a", "b", "a")]
        headers: list[Headers | None] = [None, {"A": ["1", "2", "1"]}, {"B": ["3"]}]
        last = log.append(MessageBatch.of(topics, [b"1", b"", b"\xff\x00"], headers))
        found = everything(log.read(0, last))
        assert [(r.topic, r.headers) for r in found] == list(zip(topics, headers, strict=True))
        assert [r.payload for r in found] == [b"1", b"", b"\xff\x00"]

    def test_a_range_has_no_headers_column_when_no_record_has_any(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 10))
        assert all(records.headers is None for records in log.read(0, last))

    def test_times_are_of_the_middleware_and_never_fall(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 50))
        times = [t for records in log.read(0, last) for t in records.times.tolist()]
        assert len(times) == 50
        assert times == sorted(times)
        assert times[0] > 1_500_000_000_000_000, "microseconds since the epoch"

    def test_the_same_range_gives_the_same_records_whoever_reads_it(
        self, site: LogSetup, bridge: RecordLogBridge, log: RecordLog
    ) -> None:
        last = log.append(self._batch(site, 300))
        first = everything(log.read(20, last - 20))
        other = site.make()
        other.open()
        try:
            assert everything(other.log(site.name).read(20, last - 20)) == first
        finally:
            other.close()
        assert everything(log.read(20, last - 20)) == first

    def test_a_range_is_exact(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 40))
        assert numbers(log.read(0, last)) == list(range(1, 41))
        assert numbers(log.read(10, 20)) == list(range(11, 21))
        assert numbers(log.read(19, 20)) == [20]
        assert numbers(log.read(last - 1, last)) == [last]
        assert numbers(log.read(20, 20)) == []
        assert numbers(log.read(20, 10)) == []
        assert numbers(log.read(-5, 3)) == [1, 2, 3]

    def test_a_read_ends_at_the_last_record_and_does_not_wait(self, site: LogSetup, log: RecordLog) -> None:
        assert numbers(log.read(0, 1000)) == []
        last = log.append(self._batch(site, 40))
        assert numbers(log.read(30, last + 1000)) == list(range(31, 41))
        assert numbers(log.read(last, last + 1000)) == []
        assert numbers(log.read(last + 5, last + 1000)) == []

    def test_ranges_side_by_side_give_all_records_once(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 200))
        edges = [0, 1, 2, 50, 51, 120, 199, last]
        found = [r for low, high in pairwise(edges) for r in everything(log.read(low, high))]
        assert found == everything(log.read(0, last))

    def test_many_records_come_in_batches_of_some_thousand(self, site: LogSetup, log: RecordLog) -> None:
        site.fill(self._batch(site, MANY))
        batches = list(log.read(0, MANY))
        assert len(batches) > 1
        assert [r.payload for r in everything(batches)] == [b"%d" % i for i in range(MANY)]

    def test_topics_with_and_without_wildcards_filter(self, site: LogSetup, log: RecordLog) -> None:
        root = site.root
        topics = [f"{root}.{rest}" for rest in ("a.x", "a.y", "b.x", "b.x.deep", "c")] * 20
        last = log.append(MessageBatch.of(topics, [b"%d" % i for i in range(100)]))

        def expected(*wanted: str) -> list[int]:
            return [i + 1 for i, t in enumerate(topics) if t.removeprefix(f"{root}.") in wanted]

        for pattern, wanted in {
            "a.x": ["a.x"],
            "*.x": ["a.x", "b.x"],
            "a.*": ["a.x", "a.y"],
            "b.>": ["b.x", "b.x.deep"],
            "*": ["c"],
            ">": ["a.x", "a.y", "b.x", "b.x.deep", "c"],
            "nothing.here": [],
        }.items():
            assert numbers(log.read(0, last, [f"{root}.{pattern}"])) == expected(*wanted), pattern
        assert numbers(log.read(0, last, [f"{root}.a.x", f"{root}.c"])) == expected("a.x", "c")
        assert numbers(log.read(0, last, [f"{root}.nothing"])) == []

    def test_topics_that_overlap_give_each_record_once(self, site: LogSetup, log: RecordLog) -> None:
        root = site.root
        topics = [f"{root}.{rest}" for rest in ("a.x", "a.y", "b.x")] * 20
        last = log.append(MessageBatch.of(topics, [b""] * 60))
        both = [i + 1 for i, t in enumerate(topics) if not t.endswith("b.x")]
        assert numbers(log.read(0, last, [f"{root}.a.>", f"{root}.a.x", f"{root}.a.x"])) == both
        assert numbers(log.read(0, last, [f"{root}.*.x", f"{root}.a.*"])) == list(range(1, 61))
        assert numbers(log.read(0, last, [f"{root}.*.x", f"{root}.b.>"])) == numbers(log.read(0, last, [f"{root}.*.x"]))

    def test_a_range_whose_last_matching_record_comes_early_ends(self, site: LogSetup, log: RecordLog) -> None:
        topics = [f"{site.root}.{'rare' if i in (3, 40) else 'common'}" for i in range(100)]
        log.append(MessageBatch.of(topics, [b""] * 100))
        assert numbers(log.read(0, 100, [f"{site.root}.rare"])) == [4, 41]
        assert numbers(log.read(0, 30, [f"{site.root}.rare"])) == [4]
        assert numbers(log.read(10, 30, [f"{site.root}.rare"])) == []
        assert numbers(log.read(41, 100, [f"{site.root}.rare"])) == []

    def test_a_range_is_found_by_the_records_in_it_that_match(self, site: LogSetup, log: RecordLog) -> None:
        """For middlewares that can find them."""
        if log.match_range(0, 1, [], 1) is None:
            return
        rare, common = f"{site.root}.rare", f"{site.root}.common"
        site.fill(MessageBatch.of([rare if i % 10 == 9 else common for i in range(1_000)], [b""] * 1_000))
        for topics, after, up_to, limit in (
            ([rare], 0, 1_000, 10), ([rare], 105, 900, 7), ([rare, common], 0, 1_000, 50), ([rare], 0, 1_000, 1),
            ([rare], 0, 1_000, 1_000), ([rare], 0, 5, 3), ([f"{site.root}.none"], 0, 1_000, 5), ([rare], 990, 1_000, 9),
        ):  # fmt: skip
            found = log.match_range(after, up_to, topics, limit)
            assert found is not None
            assert after < found.last <= up_to
            assert found.matching == len(numbers(log.read(after, found.last, topics))) <= limit
            if found.last < up_to:
                assert found.matching >= 0.9 * limit

    def test_deleted_records_are_left_out_and_reported_as_missing(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 50))
        gone = [1, 10, 11, 12, 20, 49]
        site.delete(gone)
        assert numbers(log.read(0, last)) == [n for n in range(1, 51) if n not in gone]
        assert log.missing(0, last) == [(1, 1), (10, 12), (20, 20), (49, 49)]
        assert log.missing(10, 20) == [(11, 12), (20, 20)]
        assert log.missing(12, 19) == []
        assert log.missing(20, 10) == []

    def test_what_was_missing_when_a_log_was_opened_is_known(
        self, site: LogSetup, bridge: RecordLogBridge, log: RecordLog
    ) -> None:
        log.append(self._batch(site, 50))
        site.delete([10, 11, 12])
        again = bridge.log(site.name)
        assert again.missing(0, 50) == [(10, 12)]
        log.append(self._batch(site, 10, 50))
        assert again.opened in (replace(log.bounds(), last=50), log.bounds())
        assert again.missing_at_open(0, 60) == [(10, 12)]

    def test_a_range_whose_end_was_deleted_ends(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 50))
        site.delete(list(range(31, 51)))
        assert numbers(log.read(0, last)) == list(range(1, 31))
        assert numbers(log.read(0, 40)) == list(range(1, 31))
        assert numbers(log.read(35, last)) == []
        assert log.missing(25, last) == [(31, 50)]
        assert log.bounds().last == last, "a sequence is never used twice"
        assert log.append(self._batch(site, 1)) == last + 1

    def test_what_is_still_to_come_is_not_missing(self, site: LogSetup, log: RecordLog) -> None:
        assert log.missing(0, 10) == []
        last = log.append(self._batch(site, 5))
        assert log.missing(0, last + 100) == []

    def test_trim_removes_what_lies_below(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 50))
        log.trim(0)
        log.trim(1)
        assert log.bounds().first == 1
        log.trim(21)
        assert (log.bounds().first, log.bounds().last) == (21, last)
        assert numbers(log.read(0, last)) == list(range(21, 51))
        assert log.missing(0, last) == [(1, 20)]
        assert log.missing(5, 10) == [(6, 10)]

    def test_trim_of_everything_skips_no_sequence(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 20))
        log.trim(last + 1000)
        assert (log.bounds().first, log.bounds().last) == (last + 1, last)
        assert numbers(log.read(0, last)) == []
        assert log.missing(0, last + 5) == [(1, last)]
        assert log.append(self._batch(site, 1)) == last + 1
        assert numbers(log.read(0, last + 1)) == [last + 1]

    def test_what_is_current_is_the_last_record_of_each_topic(self, site: LogSetup, log: RecordLog) -> None:
        """For middlewares that can tell. What has changed since is read as it was, for as long as it is there."""
        if type(log).current is RecordLog.current:
            return
        one, two, gone, root = (f"{site.root}.{name}" for name in ("a.1", "a.2", "b", ">"))
        log.append(MessageBatch.of([one, gone, two, one, one, two], [b"%d" % i for i in range(6)]))
        for topics, wanted in (
            ((), [(2, gone, b"1"), (5, one, b"4"), (6, two, b"5")]),
            ([root], [(2, gone, b"1"), (5, one, b"4"), (6, two, b"5")]),
            ([f"{site.root}.a.*"], [(5, one, b"4"), (6, two, b"5")]),
            ([gone], [(2, gone, b"1")]),
        ):
            found = current_records(log.current(topics, payloads=False))
            for batches in (last_of_each(log.current(topics)), log.read_current(found, topics)):
                assert [
                    record
                    for some in batches
                    for record in zip(
                        some.sequences.tolist(), some.topics.to_pylist(), some.payloads.to_pylist(), strict=True
                    )
                ] == wanted
        found = current_records(log.current())
        log.append(MessageBatch.of([one], [b"new"]))
        assert sorted(n for some in log.read_current(found) for n in some.sequences.tolist()) == [2, 5, 6]
        site.delete([5])
        assert sorted(n for some in log.read_current(found) for n in some.sequences.tolist()) == [2, 6]


class LogSuite(LogReadingRules):
    """Rules of :mod:`mama_spark.contracts.record_log`, one test each."""

    def test_an_empty_log_begins_behind_its_end(self, log: RecordLog) -> None:
        bounds = log.bounds()
        assert (bounds.first, bounds.last) == (1, 0)
        assert log.sequence_at(0) == 1

    def test_bounds_follow_and_the_identity_stays(
        self, site: LogSetup, bridge: RecordLogBridge, log: RecordLog
    ) -> None:
        before = log.bounds()
        assert before.identity
        last = log.append(self._batch(site, 3))
        assert (log.bounds().first, log.bounds().last) == (1, last)
        assert bridge.log(site.name).bounds().identity == before.identity

    def test_a_time_finds_the_first_record_at_or_after_it(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 30))
        site.delete([15])
        found = [(s, t) for r in log.read(0, last) for s, t in zip(r.sequences.tolist(), r.times.tolist(), strict=True)]
        for sequence, time in found[::7]:
            # a middleware may count finer than microseconds
            assert log.sequence_at(time) == next(s for s, t in found if t >= time)
            assert log.sequence_at(time + 1) <= next((s for s, t in found if t > time), last + 1)
            assert log.sequence_at(time) <= sequence
        assert log.sequence_at(0) == log.sequence_at(-1) == log.sequence_at(-(10**30)) == 1
        assert log.sequence_at(found[-1][1] + 1) == log.sequence_at(10**17) == log.sequence_at(10**30) == last + 1

    def test_append_says_the_last_sequence(self, site: LogSetup, log: RecordLog) -> None:
        assert log.append(self._batch(site, 0)) == 0
        assert log.append(self._batch(site, 5)) == 5
        assert log.append(self._batch(site, 0)) == 5
        assert log.append(self._batch(site, 5)) == log.bounds().last == 10

    def test_an_id_is_stored_once(self, site: LogSetup, log: RecordLog) -> None:
        batch = MessageBatch.of([f"{site.root}.a"] * 3, [b"1", b"2", b"3"], None, ["x", "y", "x"])
        assert log.append(batch) == 1, "the sequence of the first of its id"
        assert log.append(batch) == 1
        assert log.bounds().last == 2

    def test_what_stands_before_a_refused_record_is_stored(self, site: LogSetup, log: RecordLog) -> None:
        batch = MessageBatch.of([f"{site.root}.a", f"{site.root}.b", f"{site.root}.*", f"{site.root}.c"], [b""] * 4)
        with pytest.raises(BadTopic):
            log.append(batch)
        assert [r.topic for r in everything(log.read(0, 10))] == [f"{site.root}.a", f"{site.root}.b"]

    def test_logs_are_found_by_topic(self, site: LogSetup, bridge: RecordLogBridge) -> None:
        for topic in (f"{site.root}.a", f"{site.root}.*", f"{site.root}.>", f"{site.root}.a.*.c"):
            assert bridge.names([topic]) == [site.name]
        assert bridge.names([f"{site.root}.a", f"{site.root}.b"]) == [site.name]

    def test_a_log_that_is_not_there_is_an_error_of_the_user(self, bridge: RecordLogBridge) -> None:
        with pytest.raises(ConfigError, match="NOBODY"):
            bridge.log("NOBODY")
        assert "NOBODY" not in bridge.names(()), "asking creates nothing"

    def test_an_iterator_may_be_given_up(self, site: LogSetup, log: RecordLog) -> None:
        site.fill(self._batch(site, MANY))
        for _ in range(3):
            batches = log.read(0, MANY)
            assert next(batches).sequences[0] == 1
            del batches
        assert numbers(log.read(0, 5)) == [1, 2, 3, 4, 5]

    def test_two_ranges_may_be_read_at_a_time(self, site: LogSetup, log: RecordLog) -> None:
        site.fill(self._batch(site, MANY))
        one, two = log.read(0, MANY, [f"{site.root}.0"]), log.read(0, MANY, [f"{site.root}.1"])
        found: list[LoggedRecord] = []
        for pair in zip_longest(one, two):  # one may come in more batches than the other
            found += [record for records in pair if records is not None for record in rows(records)]
        assert sorted(r.sequence for r in found) == list(range(1, MANY + 1))

    def test_progress_is_shown_without_touching_what_is_read(self, site: LogSetup, log: RecordLog) -> None:
        last = log.append(self._batch(site, 20))
        log.progress("reader", 10)
        log.progress("reader", 20, [f"{site.root}.0"])
        log.progress("reader", 5)
        log.progress("no name at all", 5)
        assert numbers(log.read(0, last)) == list(range(1, 21))

    def test_a_log_without_limits_warns_of_nothing(self, log: RecordLog) -> None:
        assert log.warnings() == []

    def test_close_may_be_repeated(self, site: LogSetup) -> None:
        bridge = site.make()
        bridge.close()
        bridge = site.make()
        bridge.open()
        bridge.close()
        bridge.close()
