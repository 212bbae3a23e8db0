"""The dead-letter table: rows that could not be published, in full, staged and committed like the flight log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from ..message import Int64s
from .columns import Reason, constant, file_schema, repeated
from .commit import abort_parts, commit_parts
from .parts import PART_ROWS, Part, PartWriter
from .schema import TIMESTAMP, dead_letter_schema, part_schema
from .staging import check_table
from .storage import TableStore
from .transaction import CommitResult, TargetTable
from .write_id import WriteId


class DeadLetterStaging:
    """One task's dead letters. Order of calls as for :class:`~.staging.Staging`."""

    def __init__(
        self,
        table_uri: str,
        storage_options: dict[str, str],
        write_id: WriteId,
        partition_id: int,
        task_attempt: int,
        *,
        extra: Sequence[pa.Field] = (),
        part_rows: int = PART_ROWS,
    ) -> None:
        self._store = TableStore(table_uri, storage_options)
        self._prefix = write_id.prefix
        self._extra = frozenset(f.name for f in extra)
        self._table_schema = dead_letter_schema(extra)
        self._schema = file_schema(part_schema(self._table_schema))
        self._constants: dict[str, Any] = {
            "query_id": write_id.query_id,
            "run_id": write_id.run_id,
            "bridge": write_id.bridge,
            "batch_id": write_id.batch_id,
            "partition_id": partition_id,
            "task_attempt": task_attempt,
        }
        self._writer = PartWriter(self._store, write_id.prefix, self._schema, part_rows)

    def check(self, marker: str | None = None) -> None:
        """Before the first publish; as :meth:`.Staging.check`."""
        check_table(self._store, self._table_schema, self._prefix, "deadLetterTable", self._extra, marker)

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

    def close(self) -> list[Part]:
        """See :meth:`.Staging.close`."""
        return self._writer.close()

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


def commit_dead_letters(
    table_uri: str,
    storage_options: dict[str, str],
    write_id: WriteId,
    parts: Sequence[Part],
    *,
    app: tuple[str, int] | None = None,
    extra: Sequence[pa.Field] = (),
) -> CommitResult:
    """As :func:`.commit.commit`, for the dead-letter table."""
    return commit_parts(_target(table_uri, storage_options, extra), write_id, parts, app)


def abort_dead_letters(
    table_uri: str,
    storage_options: dict[str, str],
    write_id: WriteId,
    parts: Sequence[Part] = (),
    *,
    app: tuple[str, int] | None = None,
    extra: Sequence[pa.Field] = (),
) -> CommitResult:
    """As :func:`.commit.abort`, for the dead-letter table."""
    return abort_parts(_target(table_uri, storage_options, extra), write_id, parts, app)


def _target(uri: str, options: dict[str, str], extra: Sequence[pa.Field]) -> TargetTable:
    names = frozenset(f.name for f in extra)
    return TargetTable(TableStore(uri, options), "deadLetterTable", dead_letter_schema(extra), names)
