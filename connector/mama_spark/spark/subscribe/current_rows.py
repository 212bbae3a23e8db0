"""The last record of each topic in ``mamasub``: tasks that read some of them, and the read of one task."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.current_records import CurrentRecords
from mama_spark.contracts.record_log import RecordLog, Records
from mama_spark.options import SubscribeOptions

from .message_columns import operations_of
from .schema import PUT, MessageColumns
from .task_ranges import task_count


def divided(current: CurrentRecords, o: SubscribeOptions, cores: int, most: int | None) -> list[CurrentRecords]:
    """The part of each task.

    :param cores: tasks that run at once
    :param most: tasks, at most
    """
    n = o.min_partitions or (task_count(len(current), None, cores) if current.divisible else 1)
    n = min(n, len(current), most or n)
    edges = [len(current) * i // n for i in range(n + 1)] if n else []
    return [current.slice(a, b) for a, b in pairwise(edges)]


class CurrentRead:
    """Reads the part of one task; after an outage, what was not read yet.

    :param columns: say what a deletion is
    """

    def __init__(self, o: SubscribeOptions, columns: MessageColumns, wanted: CurrentRecords) -> None:
        self._o, self._columns, self._wanted = o, columns, wanted
        self._read: list[Records] = []

    def records(self, log: RecordLog, _: int) -> Iterator[Records]:
        """Those that are left, without deleted ones, if they are not wanted."""
        for records in log.read_current(self._left(), self._o.topics):
            if self._o.include_deleted:
                yield records
            else:
                puts = pc.equal(operations_of(records, self._columns.key_value), PUT)
                yield records.take(np.flatnonzero(puts.to_numpy(zero_copy_only=False)))
            self._read.append(Records(records.sequences, records.times, records.topics, pa.nulls(len(records))))

    def _left(self) -> CurrentRecords:
        if not self._read:
            return self._wanted
        if (topics := self._wanted.topics) is None:
            read = np.concatenate([records.sequences for records in self._read])
            return self._wanted.take(~np.isin(self._wanted.sequences, read))
        known = pa.chunked_array([records.topics.cast(pa.string()) for records in self._read])
        return self._wanted.take(pc.invert(pc.is_in(topics, known)).to_numpy(zero_copy_only=False))
