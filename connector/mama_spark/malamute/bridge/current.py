"""The last message of each subject of a stored stream. A broker has no index of them, so the stream is read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mama_spark.contracts.record_log import CurrentRecords, RecordLog, Records

_SUBJECTS = 256  #: of one question
#: Times that values are looked for that are replaced again and again.
_MOST_PASSES = 20


def find_current(log: RecordLog, topics: Sequence[str]) -> CurrentRecords:
    """As of a sequence up to which nothing was removed while the last part was read: what was removed before, for newer
    messages of its subject, is replaced by one of these parts."""
    found: list[Records] = []
    after = 0
    while (last := log.bounds().last) > after:
        missing = log.missing(after, last)
        for records in log.read(after, last, topics):
            found.append(Records(records.sequences, records.times, records.topics, records.topics))
        if log.missing(after, last) == missing:
            break
        after = last
    return CurrentRecords.of(last, [records.sequences for records in found], [records.topics for records in found])


def read_current(log: RecordLog, wanted: CurrentRecords, topics: Sequence[str]) -> Iterator[Records]:
    """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
    if not len(wanted):
        return
    left = np.ones(len(wanted), np.bool_)
    for records in log.read(int(wanted.sequences[0]) - 1, int(wanted.sequences[-1]), topics):
        rows, there = wanted.among(records.sequences)
        left[rows] = False
        if len(there):
            yield records.take(there)
    names = [] if (replaced := wanted.take(left).topics) is None else replaced.to_pylist()
    for i in range(0, len(names), _SUBJECTS):
        yield from _newer(log, wanted.as_of, names[i : i + _SUBJECTS])


def _newer(log: RecordLog, after: int, names: Sequence[str]) -> Iterator[Records]:
    """The last message of each of these subjects, of those behind a sequence."""
    for _ in range(_MOST_PASSES):
        last, found = log.bounds().last, dict[str, Records]()
        if not names or last <= after:
            return
        for records in log.read(after, last, names):
            found |= {name: records.slice(i, i + 1) for i, name in enumerate(records.topics.to_pylist())}
        yield from found.values()
        after, names = last, [name for name in names if name not in found]
