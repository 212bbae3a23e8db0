"""The stage of packs: makes messages of several rows each.

The outcome of a packed message is the outcome of all its rows. Packs that are rejected as too large are split into
halves, which are sent as messages of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mama_spark.contracts.errors import TooLarge
from mama_spark.contracts.message import Bools, Int64s, MessageBatch
from mama_spark.flightlog.schema import PACKED_ROWS
from mama_spark.options import SinkOptions
from mama_spark.packing.codec import Codec
from mama_spark.packing.format import HEADER_BYTES
from mama_spark.packing.packer import STORED, Packed, Packer, Rows, packed
from mama_spark.packing.split import halves
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch

from .encoding.headers import header_maps, part_entries
from .stages import SinkBatch, Stage

#: glibc keeps twice as much as the largest array that was freed, up to 64 MiB.
_LARGEST = 16 << 20


class MakePacks(Stage):
    """Packs of one partition. Rows that are rejected or stored already leave as flights of one row."""

    def __init__(self, o: SinkOptions, codec: Codec, max_payload: int) -> None:
        keep_freed_memory()
        self._codec = codec
        most = min(o.pack_max_bytes, max_payload - HEADER_BYTES)
        self._packer = Packer(codec, max_rows=o.pack_max_rows, max_bytes=most)
        self._lock = threading.Lock()
        self._returned: list[SinkBatch] = []
        self._doubled: Int64s = np.empty(0, np.int64)  # numbers of rows with a doubled id, ascending

    # --- the task's thread -----------------------------------------------------------------------------------

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        if batch.doubled is not None:
            self._doubled = np.concatenate((self._doubled, batch.numbers[batch.doubled]))
        rows = batch.rows_to_pack(self._codec)
        if batch.rejected:
            yield self._of_rejected(batch, rows)
        if batch.stored:
            yield self._of_stored(batch, rows)
            numbers = rows.numbers.copy()
            for some in batch.stored:
                numbers[some.rows] = STORED
            rows = replace(rows, numbers=numbers)
        if batch.rejected:
            rows = rows.take(batch.good)
        if len(rows):
            yield from map(self._flights_of, self._packer.add(rows))

    def finish(self) -> Iterator[SinkBatch]:
        yield from map(self._flights_of, self._packer.finish())

    def returned(self) -> list[SinkBatch]:
        with self._lock:
            found, self._returned = self._returned, []
        return found

    def _flights_of(self, packs: Packed) -> SinkBatch:
        """An id that is doubled and does not fail its row marks the pack: no broker looks at the ids in it."""
        found, doubled = flights_of(packs), self._doubled
        if not len(doubled):
            return found
        ends = np.concatenate(([0], np.cumsum(np.isin(packs.numbers, doubled))))
        marked = np.flatnonzero(np.diff(ends[packs.starts]))
        return replace(found, doubled=marked) if len(marked) else found

    def _of_rejected(self, batch: SinkBatch, rows: Rows) -> SinkBatch:
        """Rejected rows as messages of one row; a typed row is a pack of one row."""
        which = np.array([row for row, _ in batch.rejected], np.int64)
        rejected = [(i, error) for i, (_, error) in enumerate(batch.rejected)]
        some = rows.take(which)
        if batch.typed is not None:
            return replace(self._alone(some), rejected=rejected)
        messages = batch.messages.take(which)
        if messages.headers is None and some.parts is not None:
            messages = replace(messages, headers=header_maps(part_entries(some.parts), len(which)))
        extra = _lists(some.extra, np.arange(len(which) + 1))
        return SinkBatch(messages, rejected, some.numbers, extra)

    def _of_stored(self, batch: SinkBatch, rows: Rows) -> SinkBatch:
        which = np.sort(np.concatenate([some.rows for some in batch.stored]))
        at = [replace(some, rows=np.searchsorted(which, some.rows)) for some in batch.stored]
        assert batch.known_ids is not None
        return replace(self._alone(rows.take(which)), stored=at).with_ids(batch.known_ids.take(pa.array(which)))

    def _alone(self, rows: Rows) -> SinkBatch:
        rows = replace(rows, columns=self._codec.normal(rows.columns))
        return flights_of(packed(self._codec, rows, np.arange(len(rows) + 1)))

    # --- the publisher's thread ------------------------------------------------------------------------------

    def split_too_large(self, flights: FlightBatch, sent: MessageBatch, context: SinkBatch) -> Bools | None:
        """Split packs that were rejected as too large into halves, flights of their own; returns which; None = none."""
        if context.packed is None or not flights.errors:
            return None
        rows = context.packed.rows
        too_large = [row for row, e in flights.errors.items() if isinstance(e, TooLarge) and rows[row] > 1]
        which = np.array(sorted(too_large), np.int64)
        which = which[flights.state[which] == FlightState.COMPLETED_EXCEPTIONALLY]
        if not len(which):
            return None
        sends = flights.sends[which] + (0 if context.sends is None else context.sends[which])
        half_packs = self._flights_of(halves(self._codec, replace(context.packed, batch=sent), which))
        with self._lock:
            self._returned.append(replace(half_packs, sends=np.repeat(sends, 2).astype(np.int32)))
        split = np.zeros(flights.n, np.bool_)
        split[which] = True
        return split


def flights_of(packs: Packed) -> SinkBatch:
    return SinkBatch(packs.batch, [], packs.numbers[packs.starts[:-1]], _lists(packs.extra, packs.starts), packed=packs)


def _lists(extra: pa.RecordBatch | None, starts: Int64s) -> pa.RecordBatch | None:
    """The columns of each flight's rows as one list of structs: the column ``packed`` of the flight log."""
    if extra is None:
        return None
    lists = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), extra.to_struct_array())
    return pa.RecordBatch.from_arrays([lists], [PACKED_ROWS])


def keep_freed_memory() -> None:
    """Keep freed memory in the process, instead of giving it back to the kernel and asking for it again.

    glibc gives memory at the end of its heap back as soon as a few columns of a block of packs (some hundred kilobytes
    each) are freed, and the kernel clears the same pages anew for each block: 4 to 15 % more processor time for rows of
    100 bytes (``bench.packed.road``), none for rows of 1,000. Any large array that a worker frees has the effect of
    this call; other C libraries do as they always did.
    """
    np.empty(_LARGEST, np.uint8)  # freed at once: its pages were never touched
