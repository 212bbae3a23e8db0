"""Rules of what a log says to be the last record of each topic; part of :class:`~.log_suite.LogSuite`."""

from __future__ import annotations

from typing import Any

from ..contracts.message import MessageBatch
from ..contracts.record_log import RecordLog
from ..spark.subscribe.current_rows import current_records, last_of_each


class CurrentRules:
    """One test each. Fixtures are those of the suite."""

    def test_what_is_current_is_the_last_record_of_each_topic(self, site: Any, log: RecordLog) -> None:
        """Where the middleware can tell. What has changed since is read as it was, for as long as it is there."""
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
