"""Decodes deliveries of a JetStream consumer from the server's bytes to
:class:`~mama_spark.contracts.record_log.Records`. Pure.

A delivery is a ``MSG`` or ``HMSG`` frame whose reply subject has this form (NATS ADR-15):
``$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer's sequence>.<time, ns>.<pending>``, or the same with
``<domain>.<account>`` before the stream and, from some servers, one more token at the end.

:class:`DeliveryParser` finds the frames and their parts; :func:`delivery_numbers` and :func:`records_of` decode
thousands of them at a time. Announced sizes are compared with what came; no memory is allocated by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.headers import MAX_HEADERS, TOO_MANY_HEADERS
from mama_spark.contracts.message import HEADERS_TYPE, Int64s
from mama_spark.contracts.record_log import Records
from mama_spark.packing.pack_headers import map_of_lines

from .parser import MAX_MESSAGE, ProtocolError

_ACK = b"$JS.ACK."
_NUMBERS = 4  # sequence, consumer's sequence, time, pending
_REMEMBERED = 4096
#: Payloads of at least this size stay in the read buffer until they become a column, which saves a copy.
_LARGE = 4096
#: Bytes of header blocks up to which a loop over them is faster than the calls for a column.
_FEW = 10_240
_FEW_NUMBERS = 512  #: the same for numbers and subjects, one element each
#: Bytes of header blocks that become a column together (or one larger block): converting takes 20 times as many bytes.
_TOGETHER = 1 << 20


class AckSubject(NamedTuple):
    """The parts of the reply subject of a delivery: a ``prefix`` that all deliveries of the consumer share, and the
    four numbers, joined by dots."""

    prefix: bytes
    tail: bytes


def read_reply(reply: bytes) -> AckSubject | None:
    tokens = reply.split(b".")
    names = {9: 4, 11: 6, 12: 6}.get(len(tokens))  # tokens before the five numbers
    if names is None or not reply.startswith(_ACK):
        return None
    numbers = tokens[names : names + 1 + _NUMBERS]
    if not all(t.isdigit() and len(t) <= 19 for t in numbers):
        return None
    return AckSubject(b".".join(tokens[: names + 1]) + b".", b".".join(numbers[1:]))


@dataclass(slots=True)
class DeliveryBuffer:
    """Deliveries in order of arrival, one element of each list a record.

    :ivar tails: the numbers of the reply subject: see :class:`AckSubject`
    :ivar payloads: large ones as views of the read bytes
    :ivar blocks: header blocks; None for a record without; empty while no record has one
    :ivar size: approximate number of bytes
    """

    subjects: list[bytes] = field(default_factory=list)
    tails: list[bytes] = field(default_factory=list)
    payloads: list[bytes | memoryview] = field(default_factory=list)
    blocks: list[bytes | None] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.tails)


class DeliveryParser:
    """Parses the deliveries of subscription ``sid`` in the bytes of a connection."""

    def __init__(self, sid: int) -> None:
        self._sid = b"%d" % sid
        self._mark = b""  #: the text between subject and numbers, known after the first delivery
        self._sizes: dict[bytes, tuple[int, int]] = {}
        self.buffer = DeliveryBuffer()

    def take_buffer(self) -> DeliveryBuffer:
        buffered, self.buffer = self.buffer, DeliveryBuffer()
        return buffered

    def take(self, data: bytes, at: int, most: int) -> int:
        """Parse complete deliveries from ``at`` on, until the buffer has ``most``; returns the offset of the rest: no
        delivery, an incomplete one, or one too many."""
        began, view = at, memoryview(data)
        find, mark, sizes, buffer = data.find, self._mark, self._sizes, self.buffer
        subjects, tails, payloads = buffer.subjects.append, buffer.tails.append, buffer.payloads.append
        blocks = buffer.blocks
        for _ in range(most - len(buffer)):
            line_end = find(b"\r\n", at)
            if line_end < 0:
                break
            line = data[at:line_end]
            head, found, rest = line.partition(mark) if mark else (b"", b"", b"")
            if found:
                tail, _, announced = rest.partition(b" ")
            else:
                parts = self._first(line)
                if parts is None:
                    break
                head, tail, announced = parts
                mark = self._mark
            width, size = sizes.get(announced) or self._size(announced)
            with_headers = head.startswith(b"HMSG ")
            if size < 0 or with_headers != (width >= 0) or not (with_headers or head.startswith(b"MSG ")):
                break
            body = line_end + 2
            end = body + size
            if not data.startswith(b"\r\n", end):
                break
            if with_headers:
                blocks += [None] * (len(buffer.tails) - len(blocks))
                blocks.append(data[body : body + width])
                subjects(head[5:])
                body += width
            else:
                if blocks:
                    blocks.append(None)
                subjects(head[4:])
            payloads(data[body:end] if size < _LARGE else view[body:end])
            tails(tail)
            at = end + 2
        buffer.size += at - began
        return at

    def _first(self, line: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Operation with subject, numbers and sizes of a line unlike the previous one; None: no delivery."""
        args = line.split(b" ")
        if len(args) != {b"MSG": 5, b"HMSG": 6}.get(args[0]) or args[2] != self._sid:
            return None
        place = read_reply(args[3])
        if place is None:
            return None
        self._mark = b" %b %b" % (self._sid, place.prefix)
        return b"%b %b" % (args[0], args[1]), place.tail, b" ".join(args[4:])

    def _size(self, announced: bytes) -> tuple[int, int]:
        """Bytes of the header block (-1: none) and of all; (-1, -1) if it is no size."""
        numbers = announced.split(b" ")
        if len(numbers) > 2 or not all(t.isdigit() and len(t) <= 9 for t in numbers):
            return -1, -1
        sizes = (int(numbers[0]) if len(numbers) == 2 else -1, int(numbers[-1]))
        if sizes[1] > MAX_MESSAGE or sizes[0] > sizes[1]:
            return -1, -1
        if len(self._sizes) < _REMEMBERED:
            self._sizes[announced] = sizes
        return sizes


class DeliveryNumbers(NamedTuple):
    """The numbers of a buffer of deliveries.

    :ivar sequences: sequences in the stream; ``times``: nanoseconds since the epoch
    :ivar first: the consumer's sequence of the first; the others follow without a gap
    :ivar pending: records that followed the last one when it was sent
    """

    sequences: Int64s
    times: Int64s
    first: int
    pending: int


class OutOfOrder(ProtocolError):
    """Deliveries were lost: the consumer's sequences have a gap."""


def delivery_numbers(buffer: DeliveryBuffer) -> DeliveryNumbers:
    """The numbers of a buffer that is not empty. OutOfOrder: some are missing. ProtocolError: invalid numbers."""
    n = len(buffer)
    tokens = b".".join(buffer.tails).split(b".")
    if len(tokens) != _NUMBERS * n:  # a random token at the end of some
        tokens = [token for tail in buffer.tails for token in tail.split(b".")[:_NUMBERS]]
    if len(tokens) != _NUMBERS * n:
        raise ProtocolError("a reply subject without its numbers")
    numbers = _numbers([*tokens[0::_NUMBERS], *tokens[2::_NUMBERS], tokens[1], tokens[-3], tokens[-1]])
    sequences, times = numbers[:n], numbers[n : 2 * n]
    first, last, pending = numbers[2 * n :].tolist()
    if last - first != n - 1 or (n > 1 and int(np.diff(sequences).min()) <= 0):
        raise OutOfOrder(f"{n} deliveries are numbered {first} to {last}")
    return DeliveryNumbers(sequences, times, first, pending)


def records_of(buffer: DeliveryBuffer, numbers: DeliveryNumbers, headers: bool = True, views: bool = False) -> Records:
    """The records of a buffer; ``views``: payloads are views of what was read, if all of them are large."""
    blocks, faults = _readable(buffer.blocks) if headers else ([], {})
    return Records(
        numbers.sequences,
        numbers.times // 1000,
        _subjects(buffer.subjects),
        _views(buffer.payloads) if views and _all_large(buffer.payloads) else _joined(buffer.payloads),
        header_column(blocks, len(buffer)) if blocks else None,
        faults,
    )


def _readable(blocks: list[bytes | None]) -> tuple[list[bytes | None], dict[int, str]]:
    """The blocks without those of too many headers, and the faults of these."""
    large = {i for i, b in enumerate(blocks) if b and len(b) > 3 * MAX_HEADERS and b.count(b"\n") > MAX_HEADERS}
    return [None if i in large else b for i, b in enumerate(blocks)] if large else blocks, dict.fromkeys(
        large, TOO_MANY_HEADERS
    )


def _joined(values: list[bytes | memoryview]) -> pa.Array:
    """A binary array. Its bytes are copied once; Arrow's builder copies them each time it grows."""
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def _all_large(values: list[bytes | memoryview]) -> bool:
    return all(len(value) >= _LARGE for value in values)


def _views(values: list[bytes | memoryview]) -> pa.Array:
    """A binary_view array that shares the memory of large payloads."""
    views = np.zeros((len(values), 4), np.int32)
    views[:, 0] = [len(value) for value in values]
    views[:, 1] = np.frombuffer(b"".join([value[:4] for value in values]), np.int32)
    views[:, 2] = np.arange(len(values))
    held = [None, pa.py_buffer(views), *map(pa.py_buffer, values)]
    return pa.Array.from_buffers(pa.binary_view(), len(values), held)


def _numbers(tokens: list[bytes]) -> Int64s:
    try:
        if len(tokens) <= _FEW_NUMBERS and b"".join(tokens).isdigit():
            return np.array(list(map(int, tokens)), np.int64)
        numbers: Int64s = pa.array(tokens, pa.binary()).cast(pa.string()).cast(pa.int64()).to_numpy()
    except (pa.ArrowInvalid, ValueError, OverflowError) as e:
        raise ProtocolError(f"a reply subject without its numbers: {e}") from None
    return numbers


def _subjects(subjects: list[bytes]) -> pa.Array:
    if len(subjects) > _FEW_NUMBERS:
        return text(pa.array(subjects, pa.binary()))
    codes = {subject: code for code, subject in enumerate(dict.fromkeys(subjects))}
    indices = np.array([codes[subject] for subject in subjects], np.int32)
    return pa.DictionaryArray.from_arrays(indices, _names(list(codes)))


def _names(names: list[bytes]) -> pa.Array:
    return pa.array([name.decode(errors="backslashreplace") for name in names], pa.string())


def text(column: pa.Array) -> pa.Array:
    """Bytes as text, dictionary-encoded; bytes that are not UTF-8 become ``\\xHH``, so that two texts stay two."""
    encoded = column.dictionary_encode()
    try:
        names = encoded.dictionary.cast(pa.string())
    except pa.ArrowInvalid:
        names = _names(encoded.dictionary.to_pylist())
    return pa.DictionaryArray.from_arrays(encoded.indices, names)


def read_block(block: bytes) -> list[tuple[str, list[str]]]:
    """Names and values of a header block, as they were written: in order, a name once with all its values.

    One blank behind the colon belongs to the protocol. Bytes that are not UTF-8 become ``\\xHH``; a line without a
    colon is no header: the server stores whatever a publisher calls a header block.
    """
    found: dict[str, list[str]] = {}
    for line in block.decode(errors="backslashreplace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, []).append(value.removeprefix(" "))
    return list(found.items())


def header_column(blocks: list[bytes | None], n: int) -> pa.Array:
    """Header blocks as :data:`~mama_spark.contracts.message.HEADERS_TYPE`; missing and empty ones are null."""
    filled = [b for b in blocks if b]
    size = sum(map(len, filled))
    if size > _TOGETHER and len(blocks) > 1:
        half = len(blocks) // 2
        return pa.concat_arrays([header_column(blocks[:half], half), header_column(blocks[half:], n - half)])
    if size > _FEW:
        rows = np.array([i for i, b in enumerate(blocks) if b], np.int64)
        if (column := _plain_blocks(filled, rows, n)) is not None:
            return column
    found = [read_block(b) or None if b else None for b in blocks]
    return pa.array(found + [None] * (n - len(found)), HEADERS_TYPE)


def _plain_blocks(blocks: list[bytes], rows: Int64s, n: int) -> pa.Array | None:
    """The column of :func:`header_column`, without a loop over the rows: 2 to 7 times as fast for many; None where
    blocks are not text, a line is no header, or a name occurs twice in a block."""
    try:
        whole = pa.array(blocks, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    if not len(whole) or not pc.all(pc.ends_with(whole, "\r\n\r\n")).as_py():
        return None
    lines = pc.split_pattern(whole, "\r\n")
    starts = lines.offsets.to_numpy().astype(np.int64)
    counts = np.diff(starts) - 3  # the version, and two empty ones at the end
    row_of = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    entries = lines.values.take(pa.array(np.arange(len(row_of)) - first[row_of] + starts[:-1][row_of] + 1))
    if not len(entries) or pc.min(pc.find_substring(entries, ":")).as_py() < 0:
        return None
    parts = pc.split_pattern(entries, ":", max_splits=1).values
    names, values = parts[0::2], parts[1::2]
    values = pc.if_else(pc.starts_with(values, " "), pc.utf8_slice_codeunits(values, 1), values)
    return map_of_lines(n, rows[row_of], names, values)


def records_up_to(records: Records, up_to: int) -> Records:
    """The records with a sequence of at most ``up_to``; shares memory."""
    part = records.slice(0, int(np.searchsorted(records.sequences, up_to, "right")))
    return replace(part, headers=None) if part.headers is None or part.headers.null_count == len(part) else part
