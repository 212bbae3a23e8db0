"""The dead-letter table: rows that could not be published, in full, staged and committed like the flight log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from ..contracts.message import Int64s
from .columns import Reason, constant, repeated
from .commit import abort, commit
from .schema import DEAD_LETTER_TABLE, TIMESTAMP
from .staging import TaskParts


class DeadLetterStaging(TaskParts):
    """One task's dead letters. Order of calls as for :class:`~.staging.Staging`."""

    KIND = DEAD_LETTER_TABLE

    def add_dead_letters(
        self,
        flight_id: pa.Array,
        topic: pa.Array,
        payload: pa.Array | None,
        headers: pa.Array | None,
        reasons: Sequence[Reason],
        event_time: Int64s,
        extra: pa.RecordBatch | None = None,
    ) -> None:
        """Queue rows to be written.

        :param flight_id, topic: string arrays or dictionaries of strings, nulls allowed
        :param payload, headers: None = all null
        :param reasons: (status, code, info) of each row
        :param event_time: µs since the epoch
        :param extra: the columns named by ``flightLogColumns``; None = all null
        """
        if not len(event_time):
            return
        nbytes = sum(c.nbytes for c in (flight_id, payload, headers, extra) if c is not None) + 200 * len(event_time)
        columns = {"flight_id": flight_id, "topic": topic, "payload": payload, "headers": headers}
        self._writer.put(partial(self._batch, columns, list(reasons), event_time, extra), nbytes)

    def _batch(
        self,
        columns: dict[str, pa.Array | None],
        reasons: list[Reason],
        event_time: Int64s,
        extra: pa.RecordBatch | None,
    ) -> pa.RecordBatch:
        n = len(event_time)
        status, code, info = zip(*reasons, strict=True)
        made = {
            **columns,
            "topic": repeated(columns["topic"]),
            "status": pa.array(status, pa.string()),
            "code": pa.array(code, pa.int32()),
            "info": pa.array(info, pa.string()),
            "event_time": pa.array(event_time, pa.int64()).cast(TIMESTAMP),
            **{name: None if extra is None else extra.column(name) for name in self._extra},
        }
        arrays = []
        for f in self._schema:
            column = made.get(f.name)
            if column is None:
                column = constant(self._constants.get(f.name), n, f.type)
            arrays.append(column if column.type == f.type else column.cast(f.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


commit_dead_letters = partial(commit, kind=DEAD_LETTER_TABLE)
abort_dead_letters = partial(abort, kind=DEAD_LETTER_TABLE)
