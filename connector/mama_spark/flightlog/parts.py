"""Writes parts: Parquet files at their final place, written by one background thread.

Encoding must not stall the thread that publishes, so :class:`PartWriter` takes *thunks* (functions that make a record
batch) into a bounded queue. A part that was not closed never appears under its name: delta-rs' stores show an object
when its stream is closed, and drop it otherwise.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from threading import Condition, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..contracts.errors import MamaError, Unavailable
from .folder import PARTS
from .schema import TIMESTAMP
from .storage import TableStore, storage_errors

#: Rows and bytes (before encoding) of a row group: what a partition holds in memory at most, beside the queue.
GROUP_ROWS, GROUP_BYTES = 65_536, 16 << 20
#: Bytes that may wait for the background thread; one thunk always fits.
QUEUE_BYTES = 48 << 20
#: Rows of a part. Parts that a killed worker had not closed are lost from the log.
PART_ROWS = 250_000
#: Seconds without a successful write after which storage counts as unavailable.
STALL_TIMEOUT = 300.0

_FOOTER_KEY = "mama_spark.part"
_US_PER_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Part:
    """One file, small enough to travel in a Spark commit message.

    :ivar path: relative to the table, with ``/``
    :ivar event_date: ISO date (UTC) of every row in it
    :ivar min_time, max_time: bounds of ``event_time``, µs since the epoch
    :ivar counts: rows by event
    """

    path: str
    size: int
    rows: int
    event_date: str
    min_time: int
    max_time: int
    counts: dict[str, int] = field(default_factory=dict)


def part_of_file(store: TableStore, path: str, size: int) -> Part | None:
    """The description in the footer of a part; None if the file is not a whole part. Unavailable: it cannot be read."""
    with storage_errors(f"reading {path}", store.options):
        source = store.filesystem().open_input_file(path)
        try:
            with source, pq.ParquetFile(source) as file:
                metadata = file.metadata.metadata or {}
        except pa.ArrowInvalid:
            return None
    described = metadata.get(_FOOTER_KEY.encode())
    return None if described is None else Part(path=path, size=size, **json.loads(described))


class OpenPart:
    """A part being written, of rows of one day. Dropping it without :meth:`close` leaves nothing behind."""

    def __init__(self, store: TableStore, path: str, schema: pa.Schema) -> None:
        self.part = Part(path, 0, 0, "", 2**63 - 1, -(2**63))
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._counts: dict[str, int] = {}
        store.ensure_folder()
        self._stream = store.handler.open_output_stream(path, None)
        self._writer = open_writer(self._stream, schema)

    def begin(self, event_date: str) -> None:
        """Before the first rows: the day of all of them."""
        self.part = replace(self.part, event_date=event_date)

    def add(self, batch: pa.RecordBatch) -> None:
        times = pc.min_max(batch.column("event_time").cast(pa.int64()))
        self.part = replace(
            self.part,
            rows=self.part.rows + batch.num_rows,
            min_time=min(self.part.min_time, times["min"].as_py()),
            max_time=max(self.part.max_time, times["max"].as_py()),
        )
        if "event" in batch.schema.names:
            for count in batch.column("event").value_counts():
                event = str(count["values"].as_py())
                self._counts[event] = self._counts.get(event, 0) + count["counts"].as_py()
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._pending:
            rows = pa.Table.from_batches(self._pending).unify_dictionaries()  # of another one, Parquet writes values
            self._writer.write_table(rows, row_group_size=self._pending_rows)
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def close(self) -> Part:
        self._write_group()
        described = asdict(replace(self.part, counts=self._counts))
        del described["path"], described["size"]
        self._writer.add_key_value_metadata({_FOOTER_KEY: json.dumps(described)})
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return replace(self.part, size=size, counts=self._counts)

    def abandon(self) -> None:
        self._writer.is_open = False  # or its finaliser would write a footer to storage that has just failed


def open_writer(stream: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer with the cheapest encodings for the columns of a log.

    Integers and times are nearly constant or nearly sorted: deltas. Strings other than ids repeat: dictionary.
    Ids share a long prefix and end in hex digits: plain, because zstd's literals and matches do better than
    DELTA_BYTE_ARRAY (16.9 against 17.8 bytes an id, at less CPU), and every reader knows it.
    """
    deltas = {f.name: "DELTA_BINARY_PACKED" for f in schema if pa.types.is_integer(f.type) or f.type == TIMESTAMP}
    repeated = [
        f.name
        for f in schema
        if f.name != "flight_id" and (pa.types.is_string(f.type) or pa.types.is_dictionary(f.type))
    ]
    return pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeated or False,
        column_encoding=deltas or None,
        write_statistics=["event_time"] if "event_time" in schema.names else False,
        store_schema=False,
    )


class PartWriter:
    """Writes one task's rows as parts, on one background thread that starts with the first rows. A part is closed when
    it has ``part_rows`` rows.

    :param folder: below ``parts/`` (``<query or run>/<batch>``)
    :param schema: schema of the batches that the thunks return; they hold an ``event_time``
    """

    def __init__(self, store: TableStore, folder: str, schema: pa.Schema, part_rows: int) -> None:
        self._store, self._folder, self._schema, self._part_rows = store, folder, schema, part_rows
        self._open: dict[int, OpenPart] = {}
        self._spare: OpenPart | None = None
        self._parts: list[Part] = []
        self._queue: deque[tuple[Callable[[], pa.RecordBatch], int]] = deque()
        self._queued_bytes = 0
        self._closing = False
        self._error: BaseException | None = None
        self._thread: Thread | None = None
        self._changed = Condition()

    def prepare(self) -> None:
        """Open the first part in the background; its errors are raised with the first rows."""
        with self._changed:
            if self._thread is None and not self._closing and self._error is None:
                self._start()

    def _start(self) -> None:
        self._thread = Thread(target=self._run, name=f"flight-log-{self._folder}", daemon=True)
        self._thread.start()

    def put(self, thunk: Callable[[], pa.RecordBatch], nbytes: int) -> None:
        """Queue rows; waits while the queue is full.

        :raises Unavailable: storage failed, or nothing could be written for :data:`STALL_TIMEOUT` seconds
        :raises FlightLogError: storage rejects the file
        """
        with self._changed:
            if self._closing:
                raise RuntimeError("rows were added to a closed part writer")
            deadline = time.monotonic() + STALL_TIMEOUT
            while self._error is None and self._queue and self._queued_bytes + nbytes > QUEUE_BYTES:
                self._wait(deadline)
            self._raise_error()
            self._queue.append((thunk, nbytes))
            self._queued_bytes += nbytes
            self._changed.notify_all()
            if self._thread is None:
                self._start()

    def close(self) -> list[Part]:
        """Write what is queued, close the open parts, return all of them. May be repeated.

        :raises Unavailable: rows were lost because storage failed
        :raises FlightLogError: storage rejects a file
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            deadline = time.monotonic() + STALL_TIMEOUT
            while self._thread is not None and self._error is None:
                self._wait(deadline)
            self._raise_error()
            return list(self._parts)

    def _wait(self, deadline: float) -> None:
        if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
            self._error = Unavailable(f"{self._store.uri} could not be written for {STALL_TIMEOUT:g} s")

    def _raise_error(self) -> None:
        if isinstance(self._error, MamaError):
            raise type(self._error)(str(self._error)) from self._error
        if self._error is not None:
            raise Unavailable(f"the writer of {self._store.uri} ended with an error: {self._error!r}") from self._error

    # --- the background thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with storage_errors(f"writing {self._store.uri}", self._store.options):
                self._spare = self._new_part()
                while (item := self._next_thunk()) is not None:
                    self._write(item())
                for day in list(self._open):
                    self._parts.append(self._open.pop(day).close())
        except BaseException as e:  # noqa: BLE001  callers that wait get every error of this thread
            error = e
            for part in self._open.values():
                part.abandon()
        if self._spare is not None:
            self._spare.abandon()
        self._open.clear()
        self._spare = None
        with self._changed:
            self._error = self._error or error
            self._queue.clear()
            self._queued_bytes = 0
            self._thread = None
            self._changed.notify_all()

    def _new_part(self) -> OpenPart:
        return OpenPart(self._store, f"{PARTS}/{self._folder}/{uuid.uuid4()}.parquet", self._schema)

    def _next_thunk(self) -> Callable[[], pa.RecordBatch] | None:
        with self._changed:
            while not self._queue and not self._closing and self._error is None:
                self._changed.wait()
            if not self._queue or self._error is not None:
                return None
            thunk, nbytes = self._queue.popleft()
            self._queued_bytes -= nbytes
            self._changed.notify_all()
            return thunk

    def _write(self, batch: pa.RecordBatch) -> None:
        days = np.asarray(batch.column("event_time").cast(pa.int64())) // _US_PER_DAY
        first, last = int(days.min()), int(days.max())
        for day in range(first, last + 1) if last - first < 2 else np.unique(days).tolist():
            rows = batch if first == last else batch.filter(pa.array(days == day))
            if not rows.num_rows:
                continue
            if day not in self._open:
                self._open[day], self._spare = self._spare or self._new_part(), None
                self._open[day].begin((_EPOCH + timedelta(days=day)).isoformat())
            self._open[day].add(rows)
            if self._open[day].part.rows >= self._part_rows:
                self._parts.append(self._open.pop(day).close())


def check_writable(store: TableStore, folder: str) -> None:
    """Write a file where the parts will be, as they are written, and remove it again.

    :raises FlightLogError: storage rejects it
    :raises Unavailable: storage fails
    """
    path = f"{PARTS}/{folder}/_check-{uuid.uuid4()}"
    with storage_errors(f"{store.uri} cannot be written", store.options):
        store.ensure_folder()
        stream = store.handler.open_output_stream(path, None)
        open_writer(stream, pa.schema([pa.field("checked", pa.string())])).close()
        stream.close()
    with suppress(OSError):  # without permission to delete, an empty file is left until VACUUM
        store.filesystem().delete_file(path)
