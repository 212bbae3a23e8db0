"""Writes one task's events of the flight log, and its dead letters in full, to part files, which the driver commits.

Order of calls: ``check`` before the first publish; ``add_flights`` / ``add_events`` in any order, by one thread at a
time; ``close`` once at the end, also when the task is about to raise (it may be repeated).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from ..contracts.message import Int64s
from .columns import FlightColumns, LoggedEvent, Reason, constant, events_batch, file_schema, flights_batch, repeated
from .folder import WriteId, require_marker
from .log_level import Level
from .parts import PART_ROWS, Part, PartWriter, check_writable
from .schema import DEAD_LETTER_TABLE, FLIGHT_LOG, TIMESTAMP, TableKind, part_schema
from .storage import TableStore, delta_fields, existing_table, storage_errors

#: Rows and bytes that are gathered before the background thread gets them: to make a record batch of many columns
#: takes as long for 100 rows as for 8,000, and a row of 32,000 an eighth less than one of 8,000.
_GATHER_ROWS, _GATHER_BYTES = 32_768, 8 << 20

#: Seconds for which a check is valid for the other tasks of this process.
_CHECK_LIFETIME = 60.0
_checked: dict[tuple[object, ...], float] = {}


class TaskParts:
    """The parts that one task adds to a table.

    :param storage_options: delta-rs' options, the same as for the commit
    :param extra: the columns named by ``flightLogColumns``, in the order of the DataFrame
    :param part_rows: rows after which a file is closed; files that a killed worker has not closed are lost
    :raises SchemaError: a column of ``extra`` has the name of a column of the flight log
    """

    KIND: ClassVar[TableKind]

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
        self._folder = write_id.prefix
        self._extra = frozenset(f.name for f in extra)
        self._table_schema = self.KIND.schema(extra)
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
        """Before the first publish: check that the table can be written, and that an existing one is of this kind. The
        result is valid for a minute for this process and these options.

        :param marker: marker that the driver has put into the folder
        :raises FlightLogError: no permission, not a folder, not the driver's folder, another table, files of others
        :raises Unavailable: storage cannot be reached
        """
        store, what = self._store, self.KIND.option
        key = (os.getpid(), store.uri, tuple(sorted(store.options.items())), self._table_schema, what, marker)
        if _checked.get(key, -_CHECK_LIFETIME) + _CHECK_LIFETIME > time.monotonic():
            return
        delta_fields(self._table_schema)
        require_marker(store.uri, marker, what)
        with storage_errors(f"{what} {store.uri}", store.options):
            store.ensure_folder()
        existing_table(store, self._table_schema, what, self._extra)
        check_writable(store, self._folder)
        for old in [k for k, at in _checked.items() if at + _CHECK_LIFETIME <= time.monotonic()]:
            del _checked[old]
        _checked[key] = time.monotonic()

    def close(self) -> list[Part]:
        """Write all that is queued; the parts.

        :raises Unavailable: storage failed, and rows are missing from the table
        :raises FlightLogError: storage refuses
        """
        return self._writer.close()


class Staging(TaskParts):
    """One task's part of the flight log."""

    KIND = FLIGHT_LOG

    def __init__(
        self,
        table_uri: str,
        storage_options: dict[str, str],
        write_id: WriteId,
        partition_id: int,
        task_attempt: int,
        *,
        extra: Sequence[pa.Field] = (),
        level: Level = Level.OUTCOMES,
        part_rows: int = PART_ROWS,
    ) -> None:
        super().__init__(
            table_uri, storage_options, write_id, partition_id, task_attempt, extra=extra, part_rows=part_rows
        )
        self._constants |= {"kind": "flight", "publisher_state": None}
        self._level = level
        self._gathered: list[FlightColumns] = []
        self._most_gathered = min(_GATHER_ROWS, part_rows)
        self._gathered_rows = self._gathered_bytes = 0

    def prepare(self) -> None:
        """Open the first part file in the background; raises nothing."""
        self._writer.prepare()

    def add_flights(self, columns: FlightColumns) -> None:
        """Queue events of flights. Waits only when storage is slower than the publisher.

        :raises Unavailable: storage failed since
        :raises FlightLogError: storage refuses since
        """
        columns = self._level.rows_of(columns)
        if not len(columns):
            return
        self._gathered.append(columns)
        self._gathered_rows += len(columns)
        self._gathered_bytes += columns.nbytes
        if self._gathered_rows >= self._most_gathered or self._gathered_bytes >= _GATHER_BYTES:
            self._write_gathered()

    def add_events(self, events: Sequence[LoggedEvent]) -> None:
        """Queue events of publishers and topics, which are rows at every level.

        :raises Unavailable, FlightLogError: as :meth:`add_flights`
        """
        if events:
            self._writer.put(partial(events_batch, list(events), self._constants, self._schema), 1_000 * len(events))

    def close(self) -> list[Part]:
        if self._gathered:
            self._write_gathered()
        return super().close()

    def _write_gathered(self) -> None:
        chunks, nbytes = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        self._writer.put(partial(flights_batch, chunks, self._constants, self._schema), nbytes)


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
        :param payload, headers, extra: None = all null
        :param event_time: µs since the epoch
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
