"""Makes messages of the rows of a partition: one per row, or packed messages of several rows.

A flight is a message; the outcome of a packed message is the outcome of all its rows. Packs that are rejected as too
large are split into halves, which are sent as messages of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.bridge import Capabilities
from mama_spark.contracts.errors import BadRow, ConfigError, PublishError, TooLarge
from mama_spark.contracts.message import HEADERS_TYPE, Bools, Int64s, MessageBatch, payload_bounds
from mama_spark.flightlog.schema import PACKED_ROWS
from mama_spark.options import SinkOptions
from mama_spark.packing import (
    HEADER_BYTES,
    PACK_HEADERS,
    Codec,
    PackCompressor,
    Packed,
    Packer,
    Rows,
    codec_of,
    halves,
    packed,
    singles,
)
from mama_spark.packing.pack_rows import with_topic_header
from mama_spark.publishing.ids.doubled_ids import DoubledIdCheck
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch

from .encoding.codec_rows import CodecRows
from .encoding.column_plan import ColumnPlan
from .encoding.row_encoder import EncodedBatch, RowEncoder

#: glibc keeps twice as much as the largest array that was freed, up to 64 MiB.
_LARGEST = 16 << 20

#: Row and reason, ascending by row.
RejectedRows = list[tuple[int, PublishError]]

#: Headers that control the broker or describe the pack: inside a pack they would have no effect.
_CONTROL_HEADERS = rf"(?i)^(nats-|({'|'.join(PACK_HEADERS)})$)"


@dataclass(frozen=True, slots=True)
class FlightContext:
    """Context of flights that are rows of the DataFrame.

    :ivar numbers: of each flight's first row in the partition
    :ivar columns: for the flight log, an element a flight
    :ivar ids: given by the user; None = none
    :ivar packed: the packs, where the flights are packed messages
    :ivar sends: how often the rows of each pack were sent before, in larger ones; None = never
    :ivar doubled: flights that are sent although a row before them has their id, or the id of a row in them; None =
        none
    """

    numbers: Int64s
    columns: pa.RecordBatch | None
    ids: pa.Array | None = None
    packed: Packed | None = None
    sends: npt.NDArray[np.int32] | None = None
    doubled: Int64s | None = None

    @property
    def rows(self) -> Int64s | None:
        """Rows of each flight; None = one."""
        return None if self.packed is None else self.packed.rows


@dataclass(frozen=True, slots=True)
class PublishBatch:
    """Messages for the publisher, one a flight.

    :ivar batch: with the user's ids, or none
    :ivar rejected: rows of ``batch`` that cannot be sent, ascending, with the reason
    """

    batch: MessageBatch
    rejected: RejectedRows
    context: FlightContext


class RowMessages:
    """Messages of one row each, where nothing is packed. The methods are those of :class:`PackedMessages`.

    :param doubled_ids: of the rows; None = they bring no ids
    """

    def __init__(self, encoder: RowEncoder | CodecRows, doubled_ids: DoubledIdCheck | None = None) -> None:
        self._encoder, self._doubled_ids = encoder, doubled_ids

    def encode(self, rows: pa.RecordBatch, first: int) -> Iterator[PublishBatch]:
        encoded = self._encoder.encode(rows)
        rejected, doubled = encoded.rejected, None
        if self._doubled_ids is not None:
            rejected, doubled = self._doubled_ids.check(encoded.batch, rejected)
        numbers = np.arange(first, first + rows.num_rows)
        context = FlightContext(numbers, encoded.extra, encoded.batch.ids, doubled=doubled)
        yield PublishBatch(encoded.batch, rejected, context)

    def finish(self) -> Iterator[PublishBatch]:
        return iter(())

    def take_resends(self) -> list[PublishBatch]:
        return []

    def as_sent(self, batch: MessageBatch, context: FlightContext) -> tuple[MessageBatch, FlightContext]:
        return batch, context

    def split_too_large(self, flights: FlightBatch, batch: MessageBatch, context: FlightContext) -> Bools | None:
        return None


class PackedMessages:
    """Makes the packs of one partition on the task's thread; gets rejected ones back on the publisher's thread.

    :param schema: of the rows that Spark gives
    :param capabilities: of the bridge, which is open and knows where the topics lead
    :param doubled_ids: of the rows; None = they bring no ids. A doubled id that does not fail its row marks the pack:
        no broker looks at the ids in it
    :raises ConfigError: the middleware carries no packs
    """

    def __init__(
        self,
        o: SinkOptions,
        plan: ColumnPlan,
        schema: pa.Schema,
        capabilities: Capabilities,
        doubled_ids: DoubledIdCheck | None = None,
    ) -> None:
        check_bridge(o, capabilities)
        keep_freed_memory()
        self._doubled_ids = doubled_ids
        self._encoder = RowEncoder(plan, o.topic, o.topic_prefix, for_packing=True)
        self._row_encoder = RowEncoder(plan, o.topic, o.topic_prefix)
        self._lines = o.pack == "lines"
        self._column_names = _column_names(plan)
        self.codec = pack_codec(o, plan, schema)
        most = min(o.pack_max_bytes, capabilities.max_payload - HEADER_BYTES)
        self._packer = Packer(self.codec, max_rows=o.pack_max_rows, max_bytes=most)
        self._names_topics = o.exactly_once
        self._compressor = None
        if o.pack_compression != "none":
            self._compressor = PackCompressor(o.pack_compression, o.pack_compression_level)
        self._lock = threading.Lock()
        self._resends: list[PublishBatch] = []
        self._doubled: Int64s = np.empty(0, np.int64)  # numbers of rows with a doubled id, ascending

    # --- the task's thread -----------------------------------------------------------------------------------

    def encode(self, rows: pa.RecordBatch, first: int) -> Iterator[PublishBatch]:
        """Messages of these rows: those that cannot be packed, and full packs. Iterate to the end.

        :param first: number of the first row in the partition
        """
        encoded = self._encoder.encode(rows)
        rejected = dict(encoded.rejected)
        self._check(encoded, rejected)
        if self._doubled_ids is not None:
            found, doubled = self._doubled_ids.check(encoded.batch, sorted(rejected.items()))
            rejected = dict(found)
            if doubled is not None:
                self._doubled = np.concatenate((self._doubled, first + doubled))
        columns = self._columns(encoded)
        numbers = np.arange(first, first + rows.num_rows)
        batch = encoded.batch
        all_rows = Rows(batch.topics, columns, numbers, batch.streams, encoded.parts, encoded.extra)
        if not rejected:
            yield from map(self._flights_of, self._packer.add(all_rows))
            return
        left = np.array(sorted(rejected), np.int64)
        reasons = [(i, rejected[row]) for i, row in enumerate(left.tolist())]
        yield replace(self._as_single_messages(rows, encoded, all_rows, left), rejected=reasons)
        good = np.setdiff1d(np.arange(rows.num_rows), left)
        if len(good):
            yield from map(self._flights_of, self._packer.add(all_rows.take(good)))

    def finish(self) -> Iterator[PublishBatch]:
        """Packs of all rows that still wait."""
        yield from map(self._flights_of, self._packer.finish())

    def take_resends(self) -> list[PublishBatch]:
        """Halves of packs that were rejected as too large, to be sent."""
        with self._lock:
            resends, self._resends = self._resends, []
        return resends

    def _flights_of(self, packs: Packed) -> PublishBatch:
        found, doubled = flights_of(packs), self._doubled
        if not len(doubled):
            return found
        ends = np.concatenate(([0], np.cumsum(np.isin(packs.numbers, doubled))))
        marked = np.flatnonzero(np.diff(ends[packs.starts]))
        return replace(found, context=replace(found.context, doubled=marked)) if len(marked) else found

    def _columns(self, encoded: EncodedBatch) -> pa.RecordBatch:
        if encoded.typed is not None:
            return encoded.typed
        batch = encoded.batch
        found = {"value": batch.payloads, "id": batch.ids, "headers": batch.headers}
        if found["headers"] is None and "headers" in self._column_names:
            found["headers"] = pa.nulls(len(batch), HEADERS_TYPE)
        return pa.RecordBatch.from_arrays([found[name] for name in self._column_names], self._column_names)

    def _check(self, encoded: EncodedBatch, rejected: dict[int, PublishError]) -> None:
        if self._lines:
            for row in _with_line_feeds(encoded.batch.payloads):
                rejected.setdefault(row, BadRow("the value has a line feed, which pack=lines takes for its end"))
        if encoded.batch.headers is not None:
            for row, name in _control_headers(encoded.batch.headers):
                rejected.setdefault(row, BadRow(f"header {name!r} has no effect inside a pack"))

    def _as_single_messages(
        self, rows: pa.RecordBatch, encoded: EncodedBatch, all_rows: Rows, which: Int64s
    ) -> PublishBatch:
        """Rows that cannot be packed, as messages of one row; a typed row is a pack of one row."""
        some = all_rows.take(which)
        if encoded.typed is not None:
            normal = replace(some, columns=self.codec.normal(some.columns))
            return flights_of(packed(self.codec, normal, np.arange(len(which) + 1)))
        batch = self._row_encoder.encode(rows.take(pa.array(which))).batch
        starts = np.arange(len(which) + 1)
        return PublishBatch(batch, [], FlightContext(some.numbers, _lists(some.extra, starts), batch.ids))

    def as_sent(self, batch: MessageBatch, context: FlightContext) -> tuple[MessageBatch, FlightContext]:
        """The messages in their last form: compressed, if that is asked for, and with their topic as a header, if a
        repetition will look for them. Ids are made before, so that they do not depend on it."""
        if context.packed is None or (self._compressor is None and not self._names_topics):
            return batch, context
        batch = batch if self._compressor is None else self._compressor.compress(batch)
        batch = with_topic_header(batch) if self._names_topics else batch
        return batch, replace(context, packed=replace(context.packed, batch=batch))

    # --- the publisher's thread ------------------------------------------------------------------------------

    def split_too_large(self, flights: FlightBatch, batch: MessageBatch, context: FlightContext) -> Bools | None:
        """Split packs that were rejected as too large: their halves are flights of their own.

        :returns: which flights were split; None = none
        """
        if context.packed is None or not flights.errors:
            return None
        rows = context.packed.rows
        too_large = [row for row, e in flights.errors.items() if isinstance(e, TooLarge) and rows[row] > 1]
        which = np.array(sorted(too_large), np.int64)
        which = which[flights.state[which] == FlightState.COMPLETED_EXCEPTIONALLY]
        if not len(which):
            return None
        sends = flights.sends[which] + (0 if context.sends is None else context.sends[which])
        half_packs = self._flights_of(halves(self.codec, replace(context.packed, batch=batch), which))
        half_packs = replace(
            half_packs, context=replace(half_packs.context, sends=np.repeat(sends, 2).astype(np.int32))
        )
        with self._lock:
            self._resends.append(half_packs)
        split = np.zeros(flights.n, np.bool_)
        split[which] = True
        return split


def pack_codec(o: SinkOptions, plan: ColumnPlan, schema: pa.Schema) -> Codec:
    """The codec of a write.

    :param schema: of the rows that Spark gives
    """
    kinds = {"value": pa.binary(), "headers": HEADERS_TYPE, "id": pa.string()}
    columns = [schema.field(name) for name in plan.typed] or [(name, kinds[name]) for name in _column_names(plan)]
    return codec_of(o.pack, pa.schema(columns))


def _column_names(plan: ColumnPlan) -> list[str]:
    """Of packs of rows that are not typed."""
    names = ["value"]
    names += [] if plan.headers is None else ["headers"]
    names += [] if plan.id is None else ["id"]
    return names


def check_bridge(o: SinkOptions, capabilities: Capabilities) -> None:
    """:raises ConfigError: the middleware carries no packs"""
    if not capabilities.packs:
        raise ConfigError(f"option pack: the {o.bridge_name} bridge carries no packed messages; use pack=off")
    if not capabilities.headers:
        raise ConfigError(
            "option pack: this broker carries no headers, by which readers know a packed message; use pack=off"
        )


def single_rows_of(
    batch: MessageBatch, flight_id: pa.Array, context: FlightContext, errors: list[PublishError], at: Int64s
) -> tuple[MessageBatch, pa.Array, list[PublishError], Int64s]:
    """Failed flights as messages of one row, for the dead letters.

    The id is that of the row, or else that of the flight with the position in the pack.

    :param at: when each flight failed
    """
    if context.packed is None:
        return batch, flight_id, errors, at
    rows, of = singles(batch)
    place = np.arange(len(of)) - np.searchsorted(of, of)
    known = pc.binary_join_element_wise(
        flight_id.cast(pa.string()).take(pa.array(of)), pc.cast(pa.array(place), pa.string()), "-"
    )
    ids = pc.coalesce(rows.ids, known)
    return replace(rows, ids=None), ids, [errors[i] for i in of.tolist()], at[of]


def flights_of(packs: Packed) -> PublishBatch:
    """Packs as flights."""
    return PublishBatch(
        packs.batch,
        [],
        FlightContext(packs.numbers[packs.starts[:-1]], _lists(packs.extra, packs.starts), packed=packs),
    )


def _lists(extra: pa.RecordBatch | None, starts: Int64s) -> pa.RecordBatch | None:
    """The columns of each flight's rows as one list of structs: the column ``packed`` of the flight log."""
    if extra is None:
        return None
    lists = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), extra.to_struct_array())
    return pa.RecordBatch.from_arrays([lists], [PACKED_ROWS])


def _with_line_feeds(values: pa.Array) -> list[int]:
    if not len(values):
        return []
    data, bounds = values.buffers()[2], payload_bounds(values)
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    octets = np.frombuffer(data, np.uint8, size, first) if size else np.empty(0, np.uint8)
    if octets.min(initial=255) > ord("\n"):  # nearly always, in a third of the time that the search takes
        return []
    feeds = np.flatnonzero(octets == ord("\n"))
    rows: list[int] = np.unique(np.searchsorted(bounds, feeds + first, "right") - 1).tolist()
    return rows


def _control_headers(headers: pa.MapArray) -> list[tuple[int, str]]:
    """Rows with a header that would have no effect inside a pack, and its name."""
    offsets = headers.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    keys = headers.keys.slice(offsets[0], offsets[-1] - offsets[0])
    found = np.flatnonzero(pc.match_substring_regex(keys, _CONTROL_HEADERS).to_numpy(zero_copy_only=False))
    rows = np.searchsorted(offsets - offsets[0], found, "right") - 1
    return [(int(row), str(keys[at].as_py())) for row, at in zip(rows, found.tolist(), strict=True)]


def keep_freed_memory() -> None:
    """Keep memory that was freed in the process, instead of giving it back to the kernel and asking for it again.

    Columns of numbers of one block of packs have some hundred kilobytes each. glibc gives memory at the end of its heap
    back as soon as a few of them are freed, so the kernel had to find and clear the same pages anew for each block.
    Other C libraries do as they always did.
    """
    np.empty(_LARGEST, np.uint8)  # freed at once: its pages were never touched
