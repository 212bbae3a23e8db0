"""What a task does with the flight log: prove that it can be written, then hand over columns until the end.

Order of calls: ``check`` before the first publish; ``flights`` / ``events`` in any order, by one thread at a
time; ``close`` once at the end, also when the task is about to raise (it may be repeated).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from .columns import FlightColumns, LoggedEvent, events_batch, file_schema, flights_batch
from .parts import PART_ROWS, Part, PartWriter, prove_writable
from .schema import ACKED, PUBLISHED, Level, part_schema, table_schema
from .storage import TableStore, check_fits, delta_fields, storage_errors
from .write_id import WriteId

#: Rows and bytes that are gathered before the background thread gets them: a record batch of many columns costs
#: as much to make for 100 rows as for 8,000.
_GATHER_ROWS, _GATHER_BYTES = 8_192, 8 << 20

#: Seconds for which a check holds for the other tasks of this process.
_CHECK_HOLDS = 60.0
_checked: dict[tuple[object, ...], float] = {}


class Staging:
    """One task's part of the flight log.

    :param table_uri: of the Delta table
    :param storage_options: delta-rs' options, the same as for the commit
    :param extra: the columns named by ``flightLogColumns``, in the order of the DataFrame
    :param level: which flight events become rows; others are dropped here
    :param part_rows: rows after which a file is closed; what a killed worker has not closed is lost from the log
    :raises SchemaError: a column of ``extra`` has the name of one of ours
    """

    def __init__(
        self,
        table_uri: str,
        storage_options: dict[str, str],
        run: WriteId,
        partition_id: int,
        task_attempt: int,
        *,
        extra: Sequence[pa.Field] = (),
        level: Level = Level.OUTCOMES,
        part_rows: int = PART_ROWS,
    ) -> None:
        self._store = TableStore(table_uri, storage_options)
        self._run = run
        self._level = level
        self._extra = frozenset(f.name for f in extra)
        self._table_schema = table_schema(extra)
        self._schema = file_schema(part_schema(self._table_schema))
        self._constants: dict[str, Any] = {
            "kind": "flight",
            "query_id": run.query_id,
            "run_id": run.run_id,
            "bridge": run.bridge,
            "batch_id": run.batch_id,
            "partition_id": partition_id,
            "task_attempt": task_attempt,
            "publisher_state": None,
        }
        self._writer = PartWriter(self._store, run.prefix, self._schema, part_rows)
        self._gathered: list[FlightColumns] = []
        self._gathered_rows = self._gathered_bytes = 0

    def check(self) -> None:
        """Before the first publish: can the log be written, and is what stands there a flight log?

        Holds for a minute for this process and these options.

        :raises FlightLogError: no permission, not a folder, another table
        :raises Unavailable: storage cannot be reached
        """
        check_table(self._store, self._table_schema, self._run.prefix, "flightLog", self._extra)

    def flights(self, columns: FlightColumns) -> None:
        """Hand over events of flights. Cheap; waits only when storage is slower than the publisher.

        :raises Unavailable: storage failed since
        :raises FlightLogError: storage refuses since
        """
        if self._level is not Level.ALL:
            codes = columns.codes()
            if self._level is Level.ERRORS:
                keep = (codes != PUBLISHED) & (codes != ACKED)
            else:  # where nothing is acknowledged, `published` is the terminal event
                keep = (codes != PUBLISHED) | (columns.ack_level == "none")
            if not keep.all():
                columns = columns.take(np.flatnonzero(keep))
        if not len(columns):
            return
        self._gathered.append(columns)
        self._gathered_rows += len(columns)
        self._gathered_bytes += columns.nbytes
        if self._gathered_rows >= _GATHER_ROWS or self._gathered_bytes >= _GATHER_BYTES:
            self._hand_over()

    def events(self, events: Sequence[LoggedEvent]) -> None:
        """Hand over events of publishers and topics: rows at every level.

        :raises Unavailable, FlightLogError: as :meth:`flights`
        """
        if events:
            self._writer.put(partial(events_batch, list(events), self._constants, self._schema), 1_000 * len(events))

    def close(self) -> list[Part]:
        """Everything on storage: the parts. Also when the task is about to raise; may be repeated.

        :raises Unavailable: storage failed, and rows are missing from the log
        :raises FlightLogError: storage refuses
        """
        if self._gathered:
            self._hand_over()
        return self._writer.close()

    def _hand_over(self) -> None:
        chunks, nbytes = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        self._writer.put(partial(flights_batch, chunks, self._constants, self._schema), nbytes)


def check_table(store: TableStore, schema: pa.Schema, folder: str, what: str, extra: frozenset[str] | None) -> None:
    """See :meth:`Staging.check`; ``what`` is the option that names the table, ``extra`` as in ``check_fits``."""
    key = (os.getpid(), store.uri, tuple(sorted(store.options.items())), schema, what)
    if _checked.get(key, -_CHECK_HOLDS) + _CHECK_HOLDS > time.monotonic():
        return
    delta_fields(schema)
    prove_writable(store, folder)
    with storage_errors(f"{what} {store.uri}"):
        table = store.table()
    if table is not None:
        check_fits(table, schema, what, extra)
    for old in [k for k, at in _checked.items() if at + _CHECK_HOLDS <= time.monotonic()]:
        del _checked[old]
    _checked[key] = time.monotonic()
