"""Decodes batches of events: columns of frames in, columns of values out. Pure.

Events with a single number are decoded together into numpy arrays, without an object per row; all others one by one.
The layout of a topic's first event is remembered as a :class:`~mama_spark.tango.events.frame_layout.FrameLayout`; later
events are compared with it all together, and those that differ anywhere are decoded by the general decoder, so that
both always agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..topics import IDL
from ..types import DTYPES, AttributeValue, PipeData, ValueKind
from .event_codec import BIG, CALL_SIZE, LITTLE, BadEvent, Event, Heartbeat, decode
from .frame_layout import FrameLayout, layout_of

#: Topics whose layouts are remembered; when there are more, all are forgotten.
_REMEMBERED = 65536
_CALLS = {
    order: np.dtype(
        {
            "names": ["ctr", "method", "nul", "oid", "flag"],
            "formats": [code + "u4", code + "u4", "u1", code + "u4", "u1"],
            "offsets": [4, 8, 12, 16, 20],
            "itemsize": CALL_SIZE,
        }
    )
    for order, code in ((True, "<"), (False, ">"))
}
#: Replaces call infos of another size, so that they are rejected.
_NO_CALL = b"\xff" * CALL_SIZE

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scalars:
    """Events with one number each, all of one kind.

    :ivar rows: their rows in the batch, ascending
    :ivar written: set values; None if the attributes are not settable
    :ivar names: names of the attributes, Latin-1 (numpy ``S``)
    """

    kind: ValueKind
    rows: Rows
    read: npt.NDArray[Any]
    written: npt.NDArray[Any] | None
    names: npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True)
class EventColumns:
    """A decoded batch of events. Each row is in one of ``scalars``, in ``others`` or in ``bad`` (rows that are no
    events).

    :ivar ctr: counters of the events; 0 in bad rows
    :ivar time: time of values and pipes, nanoseconds since the epoch; else 0
    :ivar quality: quality of values; else -1
    :ivar data_type: type of values, if the server sent it; else -1
    :ivar others: all that is no single number: spectra, texts, errors, configurations, heartbeats
    """

    ctr: npt.NDArray[np.uint32]
    time: npt.NDArray[np.int64]
    quality: npt.NDArray[np.int8]
    data_type: npt.NDArray[np.int32]
    scalars: list[Scalars] = field(default_factory=list)
    others: dict[int, Event | Heartbeat] = field(default_factory=dict)
    bad: dict[int, BadEvent] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ctr)


def _columns(n: int) -> EventColumns:
    return EventColumns(
        np.zeros(n, np.uint32), np.zeros(n, np.int64), np.full(n, -1, np.int8), np.full(n, -1, np.int32)
    )  # fmt: skip


_DONE, _NEW = -1, -2  # in the place of a layout number: the row is decoded; its topic is unknown
_INT16 = 2**15  # layout numbers below fit into 16 bits
_Frames = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes], Sequence[bytes]]


class BatchDecoder:
    """Decodes batches of events, and remembers the layouts of their topics. For one thread."""

    __slots__ = ("_known", "_numbers", "_layouts")

    def __init__(self) -> None:
        self._layouts: list[FrameLayout] = []
        self._numbers: dict[FrameLayout, int] = {}
        self._known: dict[bytes, int] = {}  # topic -> layout number of its last event

    def decode(
        self, topics: Sequence[bytes], orders: Sequence[bytes], calls: Sequence[bytes], datas: Sequence[bytes]
    ) -> EventColumns:
        """Decode events from the four columns of their frames. Raises nothing: invalid rows are listed in ``bad``."""
        columns = _columns(len(topics))
        if len(self._known) > _REMEMBERED:
            self._layouts, self._numbers, self._known = [], {}, {}
        numbers = list(map(self._known.get, topics, repeat(_NEW)))
        frames = (topics, orders, calls, datas)
        if _NEW in numbers:
            for row, number in enumerate(numbers):
                if number == _NEW:
                    number = self._known.get(topics[row], _NEW)  # learned from an earlier row
                    numbers[row] = self._decode_and_store_layout(columns, row, frames) if number == _NEW else number
        whole = frames
        if set(map(len, calls)) != {CALL_SIZE}:
            whole = (topics, orders, [call if len(call) == CALL_SIZE else _NO_CALL for call in calls], datas)
        for number, rows in _groups(numbers):
            for row in _decode_rows(columns, self._layouts[number], rows, whole).tolist():
                own = self._decode_and_store_layout(columns, row, frames)  # another layout, or no single number
                if own != _DONE:
                    _decode_rows(columns, self._layouts[own], np.array([row]), whole)
        return columns

    def _decode_and_store_layout(self, columns: EventColumns, row: int, frames: _Frames) -> int:
        """Decode a row by the general decoder; returns its layout number, or _DONE: the row is stored."""
        parts = [column[row] for column in frames]
        try:
            event = decode(parts)
        except BadEvent as error:
            columns.bad[row] = error
            return _DONE
        value = event.data if isinstance(event, Event) else None
        if isinstance(value, AttributeValue):
            layout = layout_of(event.topic, value, event.little)
            if layout is not None and not event.call.method and not event.call.oid:
                return self._remember(parts[0], layout)
            columns.quality[row] = value.quality
            columns.data_type[row] = -1 if value.data_type is None else value.data_type
        if isinstance(value, (AttributeValue, PipeData)):
            columns.time[row] = value.time
        columns.ctr[row] = event.call.ctr
        columns.others[row] = event
        return _DONE

    def _remember(self, topic: bytes, layout: FrameLayout) -> int:
        number = self._numbers.setdefault(layout, len(self._layouts))
        if number == len(self._layouts):
            self._layouts.append(layout)
        self._known[topic] = number
        return number


def _groups(numbers: list[int]) -> Iterator[tuple[int, Rows | None]]:
    """Each layout number with its rows; None: all rows."""
    if not numbers or numbers.count(numbers[0]) == len(numbers):
        if numbers and numbers[0] != _DONE:
            yield numbers[0], None
        return
    column = np.array(numbers, np.int32)
    if max(numbers) < _INT16:
        column = column.astype(np.int16)  # which numpy sorts in a tenth of the time
    order = np.argsort(column, kind="stable")
    found, starts = np.unique(column[order], return_index=True)
    for number, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        if number != _DONE:
            yield number, rows


def _decode_rows(columns: EventColumns, layout: FrameLayout, rows: Rows | None, frames: _Frames) -> Rows:
    """Decode rows that probably have this layout; returns those that do not, which are left undecoded."""
    _, orders, calls, datas = frames
    if rows is None:
        rows = np.arange(len(datas))
    else:
        chosen = itemgetter(*rows.tolist(), 0)  # one more: itemgetter of one returns no tuple
        orders, calls, datas = chosen(orders)[:-1], chosen(calls)[:-1], chosen(datas)[:-1]
    order, size = LITTLE if layout.little else BIG, layout.dtype.itemsize
    rejected = rows[:0]
    if set(orders) != {order} or set(map(len, datas)) != {size}:
        fit = np.fromiter((o == order and len(d) == size for o, d in zip(orders, datas, strict=True)), bool, len(rows))
        rejected, rows = rows[~fit], rows[fit]
        calls, datas = list(compress(calls, fit)), list(compress(datas, fit))
    found = np.frombuffer(b"".join(datas), layout.dtype)
    call = np.frombuffer(b"".join(calls), _CALLS[layout.little])
    good = layout.accepts(found)
    good &= (call["method"] == 1) & (call["nul"] == 0) & (call["oid"] == 0) & (call["flag"] == 0)
    if not good.all():
        rejected = np.concatenate([rejected, rows[~good]])
        rows, found, call = rows[good], found[good], call[good]
    if len(rows):
        _store(columns, layout, rows, found, call)
    return rejected


def _store(
    columns: EventColumns, layout: FrameLayout, rows: Rows, found: npt.NDArray[Any], call: npt.NDArray[Any]
) -> None:
    columns.ctr[rows] = call["ctr"]
    time = found["sec"].astype(np.int64)
    time *= 1_000_000
    time += found["usec"]
    time *= 1000
    time += found["nsec"]
    columns.time[rows] = time
    columns.quality[rows] = found["quality"]
    if layout.idl == IDL:
        columns.data_type[rows] = found["data_type"]
    dtype = DTYPES[layout.kind]
    read = found["read"].astype(dtype)
    written = found["written"].astype(dtype) if layout.settable else None
    names = np.ascontiguousarray(found["name"]).view(f"S{layout.name_size + 1}").ravel()
    columns.scalars.append(Scalars(layout.kind, rows, read, written, names))
