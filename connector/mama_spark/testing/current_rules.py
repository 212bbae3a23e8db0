"""Rules of what a log says to be the last record of each topic; part of :class:`~.log_suite.LogSuite`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..contracts.message import MessageBatch
from ..contracts.record_log import RecordLog, Records


def _found(batches: Iterable[Records]) -> list[tuple[int, str]]:
    return sorted(one for some in batches for one in zip(some.sequences.tolist(), some.topics.to_pylist(), strict=True))


class CurrentRules:
    """One test each. Fixtures are those of the suite."""

    def test_what_is_current_is_the_last_record_of_each_topic(self, site: Any, log: RecordLog) -> None:
        """Where the middleware can tell."""
        if type(log).current is RecordLog.current:
            return
        one, two, gone, root = (f"{site.root}.{name}" for name in ("a.1", "a.2", "b", ">"))
        log.append(MessageBatch.of([one, gone, two, one, one, two], [b"%d" % i for i in range(6)]))
        for topics, wanted in (
            ((), [(2, gone), (5, one), (6, two)]),
            ([root], [(2, gone), (5, one), (6, two)]),
            ([f"{site.root}.a.*"], [(5, one), (6, two)]),
            ([gone], [(2, gone)]),
        ):
            found = log.current(topics)
            assert (found.as_of, found.sequences.tolist()) == (6, [sequence for sequence, _ in wanted])
            assert _found(log.read_current(found, topics)) == wanted

    def test_where_a_current_record_is_replaced_before_it_is_read_its_topic_has_the_newer_one(
        self, site: Any, log: RecordLog
    ) -> None:
        if type(log).current is RecordLog.current:
            return
        topics = [f"{site.root}.{i}" for i in range(4)]
        log.append(MessageBatch.of(topics, [b"old"] * 4))
        found = log.current()
        log.append(MessageBatch.of(topics[:2], [b"new"] * 2))
        site.delete([1, 2])
        site.delete([4])
        assert _found(log.read_current(replace(found, topics=None))) == [(3, topics[2])]
        assert _found(log.read_current(found)) == [(3, topics[2]), (5, topics[0]), (6, topics[1])]
