"""Decodes many OMNM messages at once, into columns. Pure.

Messages of a feed have few layouts. All messages that have the same run of fields next are read together: one gather of
their bytes, one comparison of the heads, one array a field. What fits no group (few messages of a layout, damaged ones)
goes through :func:`~mama_spark.mama.messages.omnm.decode`, which also finds the reason; the results are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .field_runs import BadMessage, Run, text_of
from .field_types import STRUCT_CODES, FieldType
from .msg import MAX_DEPTH
from .omnm import HEADER, RUNS, VERSION, decode

Int64s = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

TIME_DTYPE = np.dtype(
    {"names": ["hints", "seconds", "nanos", "precision"], "formats": ["u1", "<i8", "<u4", "u1"],
     "offsets": [0, 8, 16, 20], "itemsize": 40}
)  # fmt: skip
PRICE_DTYPE = np.dtype({"names": ["hints", "value"], "formats": ["u1", "<f8"], "offsets": [0, 8], "itemsize": 24})
#: Types whose values are arrays of numpy.
DTYPES: dict[FieldType, np.dtype[Any]] = {
    **{kind: np.dtype(np.dtype(f"<{code}").str) for kind, code in STRUCT_CODES.items()},
    FieldType.CHAR: np.dtype("u1"),
    FieldType.TIME: TIME_DTYPE,
    FieldType.PRICE: PRICE_DTYPE,
}
#: Bytes of an element of types that are a length and elements of one size: their values need not be looked into.
_ELEMENTS = {FieldType.OPAQUE: 1, FieldType.COLLECTION: 1} | {
    t.vector: dtype.itemsize for t, dtype in DTYPES.items() if t is not FieldType.QUANTITY
}
PADDING = 8  #: bytes of zeros behind messages: a run is compared in whole words
_FEW = 16  #: messages that are faster read one by one
_FRUITLESS = 4  #: groups of few messages in a row, before all that remain are read one by one
_MOST_LAYOUTS = 1024
_SHORT_TEXT = 128  #: bytes of a text that is looked for at its place


@dataclass(slots=True)
class FieldBlock:
    """One field of many messages.

    :ivar place: place of the field in these messages, from 0
    :ivar rows: the messages, ascending, shape (k,)
    :ivar values: shape (k,): an array of :data:`DTYPES`; for STRING a ``pa.StringArray``; for other types a list
    """

    name: str
    fid: int
    type: FieldType
    place: int
    rows: Int64s
    values: Any

    def of_rows(self, keep: npt.NDArray[np.bool_]) -> FieldBlock:
        """The rows that are True in ``keep``, shape (k,)."""
        values = self.values
        if isinstance(values, list):
            kept: Any = [value for value, wanted in zip(values, keep.tolist(), strict=True) if wanted]
        else:
            kept = values.filter(pa.array(keep)) if isinstance(values, pa.Array) else values[keep]
        return FieldBlock(self.name, self.fid, self.type, self.place, self.rows[keep], kept)


@dataclass(slots=True)
class DecodedColumns:
    """Messages as columns.

    :ivar blocks: fields, in any order; several of one name where messages have different layouts or repeat it
    :ivar bad: message -> why it cannot be read
    :ivar one_by_one: number of messages that were read one by one
    """

    blocks: list[FieldBlock] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    one_by_one: int = 0


#: (name, fid) -> whether a field is to be decoded
Wanted = Callable[[str, int], bool]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout by which a run of many messages is read.

    :ivar words: 8-byte words of the run, with what follows it
    :ivar mask: mask of the bytes of heads, shape (words,)
    :ivar fields: (index in the run, offset of the value) of the wanted ones of fixed size
    """

    words: int
    mask: npt.NDArray[np.uint64]
    pattern: npt.NDArray[np.uint64]
    fields: tuple[tuple[int, int], ...]
    last_is_wanted: bool


@dataclass(slots=True)
class _Group:
    """Messages that had equal layouts so far; ``at``: positions of their next fields, shape (k,)."""

    rows: Int64s
    at: Int64s
    place: int = 0
    fruitless: int = 0


class ColumnDecoder:
    """Decodes batches of messages, and remembers their layouts. For one thread. ``wanted`` None: all fields."""

    def __init__(self, wanted: Wanted | None = None) -> None:
        self.wants = wanted or (lambda name, fid: True)
        self._layouts: dict[tuple[bytes, ...], _Layout] = {}

    def decode(self, data: pa.Buffer | bytes | bytearray, begins: Int64s, ends: Int64s) -> DecodedColumns:
        """Decode messages into columns, one for each wanted field.

        :param data: holds the messages; is copied, unless it ends with :data:`PADDING` bytes of zeros behind them
        :param begins: offset of each message in ``data``, shape (n,)
        :param ends: offset of its end, shape (n,); not beyond ``data``
        """
        return _Batch(self, data, begins, ends).decode()

    def layout(self, run: Run) -> _Layout:
        found = self._layouts.get(run.heads)
        if found is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[run.heads] = self._make(run)
        return found

    def _make(self, run: Run) -> _Layout:
        words = -(-run.size // 8)
        mask, pattern = (number.to_bytes(8 * words, "little") for number in (run.mask, run.pattern))
        fixed = len(run.heads) - (run.read is not None)
        fields = tuple(
            (i, run.ends[i] - DTYPES[run.types[i]].itemsize)
            for i in range(fixed)
            if self.wants(run.names[i], run.fids[i])
        )
        last = run.read is not None and self.wants(run.names[-1], run.fids[-1])
        return _Layout(words, np.frombuffer(mask, np.uint64), np.frombuffer(pattern, np.uint64), fields, last)


class _Batch:
    def __init__(
        self, decoder: ColumnDecoder, data: pa.Buffer | bytes | bytearray, begins: Int64s, ends: Int64s
    ) -> None:
        self._decoder = decoder
        self._data = _padded(np.frombuffer(data, np.uint8), int(ends.max()) if len(ends) else 0)
        self._begins, self._ends = begins, ends
        self._found = DecodedColumns()
        self._slow: list[Int64s] = []
        self._groups: list[_Group] = []
        self._ends_of_text: Int64s | None = None

    def decode(self) -> DecodedColumns:
        self._read_headers()
        while self._groups:
            self._step(self._groups.pop())
        if self._slow:
            self._read_one_by_one(np.sort(np.concatenate(self._slow)))
        return self._found

    def _read_headers(self) -> None:
        n = len(self._begins)
        whole = self._ends - self._begins >= len(HEADER)
        at = np.where(whole, self._begins, 0)
        data = self._data
        good = whole & (data[at] == HEADER[0]) & (data[at + 1] == VERSION)
        at = at + len(HEADER) + data[at + 2]
        good &= at <= self._ends
        rows = np.arange(n)
        self._leave(rows[~good])
        self._groups.append(_Group(rows[good], at[good]))

    def _leave(self, rows: Int64s) -> None:
        if len(rows):
            self._slow.append(rows)

    def _step(self, group: _Group) -> None:
        more = group.at < self._ends[group.rows]
        if not more.all():
            group = _Group(group.rows[more], group.at[more], group.place, group.fruitless)
        rows, at = group.rows, group.at
        if len(rows) < _FEW or group.fruitless >= _FRUITLESS:
            self._leave(rows)
            return
        run = self._next_run(int(at[0]), int(self._ends[rows[0]]))
        if run is None:
            self._leave(rows[:1])
            self._groups.append(_Group(rows[1:], at[1:], group.place, group.fruitless + 1))
            return
        layout = self._decoder.layout(run)
        fits = at + run.size <= self._ends[rows]
        words = self._gather(np.where(fits, at, 0), layout.words)
        same = fits & ~((words & layout.mask) != layout.pattern).any(axis=1)
        if not same.all():
            fruitless = group.fruitless + 1 if same.sum() < _FEW else 0
            self._groups.append(_Group(rows[~same], at[~same], group.place, fruitless))
            rows, at, words = rows[same], at[same], words[same]
            if len(rows) < _FEW:
                self._leave(rows)
                return
        self._take(run, layout, words, rows, group.place)
        group = _Group(rows, at + run.size, group.place + len(run.heads))
        if run.read is not None:
            group = self._read_last(run, layout, group)
        self._groups.append(group)

    def _next_run(self, at: int, end: int) -> Run | None:
        """The run at a position; None: the field there is invalid."""
        rest = self._data[at:end].tobytes()
        try:
            run = RUNS.known(rest[: rest.find(0, 3) + 1]) or RUNS.learn(rest, 0, len(rest))
            if run.size > len(rest):
                run = RUNS.shorten(run, run.fields_within(len(rest)), 0)
            if (fields := run.equal_fields(rest, 0)) < len(run.heads):
                run = RUNS.shorten(run, fields, 0)
        except BadMessage:
            return None
        return run

    def _gather(self, at: Int64s, words: int) -> npt.NDArray[np.uint64]:
        """The bytes from each position as words, shape (k, words)."""
        size = 8 * words
        if size > len(self._data):  # a run may be shorter than its words by 7 bytes, and so may the data
            self._data = np.concatenate((self._data, np.zeros(size, np.uint8)))
        view: npt.NDArray[Any] = np.ndarray((len(self._data) - size + 1,), f"V{size}", self._data.data, strides=(1,))
        return view[at].view(np.uint64).reshape(len(at), words)

    def _take(self, run: Run, layout: _Layout, words: npt.NDArray[np.uint64], rows: Int64s, place: int) -> None:
        word_bytes = words.view(np.uint8).reshape(len(rows), 8 * layout.words)
        for i, offset in layout.fields:
            dtype = DTYPES[run.types[i]]
            values = np.ascontiguousarray(word_bytes[:, offset : offset + dtype.itemsize]).view(dtype)[:, 0]
            if dtype.kind == "b":
                values = values.view(np.uint8) != 0
            self._add(run, i, place, rows, values)

    def _add(self, run: Run, i: int, place: int, rows: Int64s, values: Any) -> None:
        self._found.blocks.append(FieldBlock(run.names[i], run.fids[i], run.types[i], place + i, rows, values))

    def _read_last(self, run: Run, layout: _Layout, group: _Group) -> _Group:
        kind, wanted = run.types[-1], layout.last_is_wanted
        if kind is FieldType.STRING:
            good, behind, values = self._read_texts(group, wanted)
        elif kind in _ELEMENTS and not wanted:
            good, behind = self._skip_elements(group, _ELEMENTS[kind])
            values = None
        else:
            good, behind, values = self._read_each(run, group)
        rows = group.rows
        if not good.all():
            self._leave(rows[~good])
            rows, behind = rows[good], behind[good]
        if wanted:
            self._add(run, len(run.heads) - 1, group.place - len(run.heads), rows, values)
        return _Group(rows, behind, group.place)

    def _read_texts(self, group: _Group, wanted: bool) -> tuple[npt.NDArray[np.bool_], Int64s, Any]:
        """True for each terminated text; where each ends; the terminated texts."""
        stops = self._stops_of_equal_length(group)
        if stops is None:
            if self._ends_of_text is None:
                self._ends_of_text = np.flatnonzero(self._data == 0)  # the padding is one, so there is always one more
            stops = self._ends_of_text[np.searchsorted(self._ends_of_text, group.at)]
        good = stops < self._ends[group.rows]
        values = None
        if wanted:
            at, stops_ = (group.at, stops) if good.all() else (group.at[good], stops[good])
            values = self._texts(at, stops_ - at)
        return good, stops + 1, values

    def _stops_of_equal_length(self, group: _Group) -> Int64s | None:
        """Ends of the texts if all are as long as the first, as symbols often are; else, and for long ones, None. To
        find all NULs takes longer than everything else."""
        at = group.at
        first = self._data[int(at[0]) : int(at[0]) + _SHORT_TEXT]
        found = np.flatnonzero(first == 0)
        if not len(found):
            return None
        size = int(found[0])
        if int(at.max()) + size >= len(self._data):
            return None
        view: npt.NDArray[Any] = np.ndarray(
            (len(self._data) - size, size + 1), np.uint8, self._data.data, strides=(1, 1)
        )
        is_end = view[at] == 0
        return at + size if is_end[:, size].all() and not is_end[:, :size].any() else None

    def _texts(self, at: Int64s, sizes: Int64s) -> pa.StringArray:
        offsets = np.zeros(len(at) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        text_bytes = self._data[np.arange(offsets[-1]) + np.repeat(at - offsets[:-1], sizes)]
        if len(text_bytes) and text_bytes.max() >= 0x80:
            data, bounds = text_bytes.tobytes(), offsets.tolist()
            return pa.array([text_of(data[a:b]) for a, b in itertools.pairwise(bounds)], pa.string())
        return pa.StringArray.from_buffers(len(at), pa.py_buffer(offsets), pa.py_buffer(text_bytes))

    def _skip_elements(self, group: _Group, size: int) -> tuple[npt.NDArray[np.bool_], Int64s]:
        ends = self._ends[group.rows]
        announced = group.at + 4 <= ends
        lengths = self._gather(np.where(announced, group.at, 0), 1)[:, 0].astype(np.uint32).astype(np.int64)
        behind = group.at + 4 + lengths
        return announced & (behind <= ends) & (lengths % size == 0), behind

    def _read_each(self, run: Run, group: _Group) -> tuple[npt.NDArray[np.bool_], Int64s, list[Any]]:
        """One by one: vectors and messages are rare in what is read as columns."""
        assert run.read is not None
        good, behind, values = np.ones(len(group.rows), np.bool_), group.at.copy(), []
        for i, (at, end) in enumerate(zip(group.at.tolist(), self._ends[group.rows].tolist(), strict=True)):
            data = self._data[at:end].tobytes()
            try:
                value, stop = run.read(data, 0, len(data), MAX_DEPTH)
            except BadMessage:
                good[i] = False
                continue
            if stop > len(data):
                good[i] = False
                continue
            behind[i] = at + stop
            values.append(value)
        return good, behind, values

    def _read_one_by_one(self, rows: Int64s) -> None:
        apart = np.zeros(len(self._begins), np.bool_)
        apart[rows] = True
        found = self._found
        found.one_by_one = len(rows)
        found.blocks = [
            block if not (taken := apart[block.rows]).any() else block.of_rows(~taken) for block in found.blocks
        ]
        values: dict[tuple[str, int, FieldType, int], tuple[list[int], list[Any]]] = {}
        wants = self._decoder.wants
        for row in rows.tolist():
            try:
                msg = decode(self._data[self._begins[row] : self._ends[row]].tobytes())
            except BadMessage as e:
                found.bad[row] = e.info
                continue
            for place, (name, fid, kind, value) in enumerate(msg.fields):
                if wants(name, fid):
                    of_rows, of_values = values.setdefault((name, fid, kind, place), ([], []))
                    of_rows.append(row)
                    of_values.append(value)
        for (name, fid, kind, place), (of_rows, of_values) in values.items():
            array = _as_array(kind, of_values)
            found.blocks.append(FieldBlock(name, fid, kind, place, np.array(of_rows, np.int64), array))


def _padded(message_bytes: ByteArray, end: int) -> ByteArray:
    if len(message_bytes) - end >= PADDING and not message_bytes[-PADDING:].any():
        return message_bytes
    return np.concatenate((message_bytes, np.zeros(PADDING, np.uint8)))


def _as_array(kind: FieldType, values: list[Any]) -> Any:
    if kind is FieldType.STRING:
        return pa.array(values, pa.string())
    if kind is FieldType.TIME:
        return np.array([(t.hints, t.seconds, t.nanos, t.precision) for t in values], TIME_DTYPE)
    if kind is FieldType.PRICE:
        return np.array([(p.hints, p.value) for p in values], PRICE_DTYPE)
    if kind is FieldType.CHAR:
        return np.array([ord(c) for c in values], np.uint8)
    return np.array(values, DTYPES[kind]) if kind in DTYPES else values
