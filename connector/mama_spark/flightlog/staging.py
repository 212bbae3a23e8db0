"""Writes one task's events of the flight log to part files, which the driver commits.

Order of calls: ``check`` before the first publish; ``add_flights`` / ``add_events`` in any order, by one thread at a
time; ``close`` once at the end, also when the task is about to raise (it may be repeated).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from .columns import FlightColumns, LoggedEvent, events_batch, file_schema, flights_batch
from .folder import require_marker
from .parts import PART_ROWS, Part, PartWriter, check_writable
from .schema import ACKED, FLIGHT_LOG, PUBLISHED, Level, TableKind, part_schema
from .storage import TableStore, delta_fields, existing_table, storage_errors
from .write_id import WriteId

#: Rows and bytes that are gathered before the background thread gets them: to make a record batch of many columns
#: takes as long for 100 rows as for 8,000, and a row of 32,000 an eighth less than one of 8,000.
_GATHER_ROWS, _GATHER_BYTES = 32_768, 8 << 20

#: Seconds for which a check is valid for the other tasks of this process.
_CHECK_LIFETIME = 60.0
_checked: dict[tuple[object, ...], float] = {}


class TaskParts:
    """What one task adds to a table.

    :cvar KIND: of the table
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
        """Before the first publish: check that the table can be written, and that an existing one is of this kind.

        The result is valid for a minute for this process and these options.

        :param marker: that the driver has put into the folder
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
        """Write all that is queued; the parts. Also when the task is about to raise; may be repeated.

        :raises Unavailable: storage failed, and rows are missing from the table
        :raises FlightLogError: storage refuses
        """
        return self._writer.close()


class Staging(TaskParts):
    """One task's part of the flight log.

    :param level: which flight events become rows; the others are dropped
    """

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
        """Events will come: open the first part file in the background. Raises nothing."""
        self._writer.prepare()

    def add_flights(self, columns: FlightColumns) -> None:
        """Queue events of flights. Waits only when storage is slower than the publisher.

        :raises Unavailable: storage failed since
        :raises FlightLogError: storage refuses since
        """
        if self._level is not Level.ALL:
            codes = columns.codes()
            if self._level is Level.ERRORS:
                keep = (codes != PUBLISHED) & (codes != ACKED)
                keep[list(columns.reasons)] = True  # a doubled id is an error, however its flight ended
            else:  # where nothing is acknowledged, `published` is the terminal event
                keep = (codes != PUBLISHED) | columns.without_acknowledgement()
            if not keep.all():
                columns = columns.take(np.flatnonzero(keep))
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
