"""Many events at once: frames in, columns out. Pure.

Events of one number are the rule, and theirs are columns of numpy without an object a row; whatever else came is read
one by one and lies beside them. What the first event of a topic taught is remembered: the next ones are compared with
its :class:`~mama_spark.tango.events.frame_layout.FrameLayout` all together, and those that differ anywhere go the
general way, so that both ways always agree.
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
from .event_codec import Event, Heartbeat, decode
from .frame_layout import FrameLayout, layout_of
from .frames import BIG, CALL_SIZE, LITTLE, BadEvent

#: topics that are remembered; then it begins anew
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
#: in the place of a call info of another size, so that it is refused
_NO_CALL = b"\xff" * CALL_SIZE

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scalars:
    """Events of one number each, all of one kind.

    :ivar rows: where they stand in the batch, ascending
    :ivar read: by the kind's type
    :ivar written: what was last set; None where the attributes cannot be set
    :ivar names: of the attributes, Latin-1 (numpy ``S``)
    """

    kind: ValueKind
    rows: Rows
    read: npt.NDArray[Any]
    written: npt.NDArray[Any] | None
    names: npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True)
class EventColumns:
    """What a batch of events holds. Each row is in one of ``scalars``, in ``others`` or in ``bad``.

    :ivar ctr: counters of the events; 0 in bad rows
    :ivar time: of values, pipes: nanoseconds since the epoch; else 0
    :ivar quality: of values; else -1
    :ivar data_type: of values, as far as told; else -1
    :ivar others: what is no single number: spectra, texts, errors, configurations, heartbeats
    :ivar bad: what is no event
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


_DONE, _NEW = -1, -2  # instead of the number of a shape
_FEW = 2**15  # numbers of shapes that 16 bits hold
_Frames = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes], Sequence[bytes]]


class BatchDecoder:
    """Decodes batches of events, and remembers the shapes of what it saw. For one thread."""

    __slots__ = ("_known", "_numbers", "_shapes")

    def __init__(self) -> None:
        self._shapes: list[FrameLayout] = []
        self._numbers: dict[FrameLayout, int] = {}
        self._known: dict[bytes, int] = {}  # topic -> number of the shape of its last event

    def __repr__(self) -> str:
        return f"<BatchDecoder, {len(self._known)} topics, {len(self._shapes)} shapes>"

    def decode(
        self, topics: Sequence[bytes], orders: Sequence[bytes], calls: Sequence[bytes], datas: Sequence[bytes]
    ) -> EventColumns:
        """Four columns, the frames of events. Nothing is raised for what the frames hold."""
        columns = _columns(len(topics))
        if len(self._known) > _REMEMBERED:
            self._shapes, self._numbers, self._known = [], {}, {}
        numbers = list(map(self._known.get, topics, repeat(_NEW)))
        frames = (topics, orders, calls, datas)
        if _NEW in numbers:
            for row, number in enumerate(numbers):
                if number == _NEW:
                    number = self._known.get(topics[row], _NEW)  # by a row before this
                    numbers[row] = self._learn(columns, row, frames) if number == _NEW else number
        whole = frames
        if set(map(len, calls)) != {CALL_SIZE}:
            whole = (topics, orders, [call if len(call) == CALL_SIZE else _NO_CALL for call in calls], datas)
        for number, rows in _groups(numbers):
            for row in _take(columns, self._shapes[number], rows, whole).tolist():
                own = self._learn(columns, row, frames)  # the layout has changed, or this is something else
                if own != _DONE:
                    _take(columns, self._shapes[own], np.array([row]), whole)
        return columns

    def _learn(self, columns: EventColumns, row: int, frames: _Frames) -> int:
        """Read a row the general way: the number of its shape, or _DONE and the row is where it belongs."""
        parts = [column[row] for column in frames]
        try:
            event = decode(parts)
        except BadEvent as error:
            columns.bad[row] = error
            return _DONE
        value = event.data if isinstance(event, Event) else None
        if isinstance(value, AttributeValue):
            shape = layout_of(event.topic, value, event.little)
            if shape is not None and not event.call.method and not event.call.oid:
                return self._remember(parts[0], shape)
            columns.quality[row] = value.quality
            columns.data_type[row] = -1 if value.data_type is None else value.data_type
        if isinstance(value, (AttributeValue, PipeData)):
            columns.time[row] = value.time
        columns.ctr[row] = event.call.ctr
        columns.others[row] = event
        return _DONE

    def _remember(self, topic: bytes, shape: FrameLayout) -> int:
        number = self._numbers.setdefault(shape, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(shape)
        self._known[topic] = number
        return number


def decode_batch(
    topics: Sequence[bytes], orders: Sequence[bytes], calls: Sequence[bytes], datas: Sequence[bytes]
) -> EventColumns:
    """A batch on its own; who decodes many keeps a :class:`BatchDecoder`."""
    return BatchDecoder().decode(topics, orders, calls, datas)


def _groups(numbers: list[int]) -> Iterator[tuple[int, Rows | None]]:
    """Each number of a shape with its rows; None: all rows."""
    if not numbers or numbers.count(numbers[0]) == len(numbers):
        if numbers and numbers[0] != _DONE:
            yield numbers[0], None
        return
    column = np.array(numbers, np.int32)
    if max(numbers) < _FEW:
        column = column.astype(np.int16)  # which numpy sorts in a tenth of the time
    order = np.argsort(column, kind="stable")
    found, starts = np.unique(column[order], return_index=True)
    for number, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        if number != _DONE:
            yield number, rows


def _take(columns: EventColumns, shape: FrameLayout, rows: Rows | None, frames: _Frames) -> Rows:
    """Read rows that should be of this shape; those that are not are returned, and nothing is done about them."""
    _, orders, calls, datas = frames
    if rows is None:
        rows = np.arange(len(datas))
    else:
        chosen = itemgetter(*rows.tolist(), 0)  # one more, since of one it gives no tuple
        orders, calls, datas = chosen(orders)[:-1], chosen(calls)[:-1], chosen(datas)[:-1]
    order, size = LITTLE if shape.little else BIG, shape.dtype.itemsize
    rejected = rows[:0]
    if set(orders) != {order} or set(map(len, datas)) != {size}:
        fit = np.fromiter((o == order and len(d) == size for o, d in zip(orders, datas, strict=True)), bool, len(rows))
        rejected, rows = rows[~fit], rows[fit]
        calls, datas = list(compress(calls, fit)), list(compress(datas, fit))
    found = np.frombuffer(b"".join(datas), shape.dtype)
    call = np.frombuffer(b"".join(calls), _CALLS[shape.little])
    good = shape.accepts(found)
    good &= (call["method"] == 1) & (call["nul"] == 0) & (call["oid"] == 0) & (call["flag"] == 0)
    if not good.all():
        rejected = np.concatenate([rejected, rows[~good]])
        rows, found, call = rows[good], found[good], call[good]
    if len(rows):
        _store(columns, shape, rows, found, call)
    return rejected


def _store(
    columns: EventColumns, shape: FrameLayout, rows: Rows, found: npt.NDArray[Any], call: npt.NDArray[Any]
) -> None:
    columns.ctr[rows] = call["ctr"]
    time = found["sec"].astype(np.int64)
    time *= 1_000_000
    time += found["usec"]
    time *= 1000
    time += found["nsec"]
    columns.time[rows] = time
    columns.quality[rows] = found["quality"]
    if shape.idl == IDL:
        columns.data_type[rows] = found["data_type"]
    dtype = DTYPES[shape.kind]
    read = found["read"].astype(dtype)
    written = found["written"].astype(dtype) if shape.settable else None
    names = np.ascontiguousarray(found["name"]).view(f"S{shape.name_size + 1}").ravel()
    columns.scalars.append(Scalars(shape.kind, rows, read, written, names))
