"""Decodes the messages that a fetch returns as :class:`~mama_spark.contracts.record_log.Records`. Pure.

The command frames of a fetch are joined and decoded by NumPy, all at once; only distinct subjects one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.headers import MAX_HEADERS, MSG_ID, TOO_MANY_HEADERS
from mama_spark.contracts.message import HEADERS_TYPE, Int64s
from mama_spark.contracts.record_log import PUT, Records
from mama_spark.packing.pack_headers import first_values, map_of_lines

from ..protocol.ttl import EXPIRED, MARKER

#: Header under which readers find the id of a message, as on NATS.
ID_HEADER = MSG_ID.encode()
_STAMP = b"MS\x01\x03\x00\x08", b"\x04\x00\x08"  #: bytes before the sequence, and before the time
_STAMPED = 25
_ID, _HEADER = 7, 8
_BINARY = pa.binary()
_STEPS = 64  #: fields of a message up to which all messages are read together
_MORE = b"\0" * 1024  #: padding, so that no read goes behind the end

ByteArray = npt.NDArray[np.uint8]
#: Of fields: row, name at, length, value at, length.
_Places = tuple[Int64s, Int64s, Int64s, Int64s, Int64s]


def operations_of(headers: pa.Array | None, n: int) -> pa.Array:
    """Operation of each of ``n`` records on its topic: ``expired`` of a broker's marker, else ``put``."""
    if headers is None:
        return pa.repeat(PUT, n)
    markers = pc.equal(first_values(headers, MARKER.decode())[0], EXPIRED.decode())
    return pc.if_else(pc.fill_null(markers, False), "expired", PUT)


def records(messages: Sequence[Sequence[bytes]]) -> Records:
    """At least one message.

    :raises Unavailable: a message is no STREAM DELIVER with sequence and time
    """
    frames = [message[0] for message in messages]
    ends: Int64s = np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)))
    return _records(b"".join((*frames, _MORE)), ends, _payloads(messages))


def block(message: Sequence[bytes]) -> Records:
    """Payloads stay where they are.

    :raises Unavailable: it is no BLOCK
    """
    n = len(message[1]) // 8 if len(message) == 4 else 0
    lengths = np.frombuffer(message[1], ">u4").astype(np.int64) if n and len(message[1]) == 8 * n else None
    if lengths is None or lengths[:n].sum() != len(message[2]) or lengths[n:].sum() != len(message[3]):
        raise Unavailable("the broker sent something else than a block")
    edges = np.zeros(n + 1, np.int32)
    np.cumsum(lengths[n:], out=edges[1:])
    payloads = pa.BinaryArray.from_buffers(_BINARY, n, [None, pa.py_buffer(edges), pa.py_buffer(message[3])])
    return _records(message[2] + _MORE, np.cumsum(lengths[:n]), payloads)


def ids(message: Sequence[bytes]) -> tuple[Int64s, list[bytes]]:
    """Sequences and ids of an answer to IDS.

    :raises Unavailable: it is none
    """
    n = len(message[1]) // 8 if len(message) == 4 else 0
    lengths = np.frombuffer(message[2], ">u2").astype(np.int64) if n and len(message[2]) == 2 * n else None
    if lengths is None or len(message[1]) != 8 * n or lengths.sum() != len(message[3]):
        raise Unavailable("the broker sent something else than ids")
    ends, joined = np.cumsum(lengths).tolist(), message[3]
    found = [joined[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return np.frombuffer(message[1], ">u8").astype(np.int64), found


def _records(joined: bytes, ends: Int64s, payloads: pa.Array) -> Records:
    """Records with these payloads; everything else is decoded from the command frames.

    :param joined: command frames, one behind another, and :data:`_MORE`
    :param ends: end of each frame in ``joined``, bytes
    :raises Unavailable: a frame has no sequence and time
    """
    buffer, starts = np.frombuffer(joined, np.uint8), np.concatenate(([0], ends[:-1]))
    at = starts + 3
    for _ in range(2):  # stream and sender
        at = at + 1 + _at(buffer, at)
    subject, length = at + 1, _at(buffer, at)
    at = subject + length
    if (at + _STAMPED > ends).any() or not (_same(buffer, at, _STAMP[0]) and _same(buffer, at + 14, _STAMP[1])):
        raise Unavailable("the broker sent a message without its sequence")
    found, faults = _headers(buffer, at + _STAMPED, ends)
    return Records(
        _number(buffer, at + 6),
        _number(buffer, at + 17),
        _topics(_slices(buffer, subject, length)),
        payloads,
        found,
        faults,
    )


def _at(buffer: ByteArray, at: Int64s) -> Int64s:
    return buffer[np.minimum(at, len(buffer) - 1)].astype(np.int64)


def _same(buffer: ByteArray, at: Int64s, expected: bytes) -> bool:
    return all(bool((buffer[at + i] == byte).all()) for i, byte in enumerate(expected))


def _number(buffer: ByteArray, at: Int64s, width: int = 8) -> Int64s:
    found: Int64s = np.zeros(len(at), np.int64)
    for i in range(width):
        found = (found << 8) | buffer[at + i]
    return found


def _slices(buffer: ByteArray, starts: Int64s, lengths: Int64s) -> pa.Array:
    """These bytes, ascending and apart, as one binary column: every other piece of the buffer."""
    edges = np.empty(2 * len(starts), np.int32)
    edges[0::2], edges[1::2] = starts, starts + lengths
    pieces = pa.BinaryArray.from_buffers(
        _BINARY, max(0, len(edges) - 1), [None, pa.py_buffer(edges), pa.py_buffer(buffer)]
    )
    return pieces.take(pa.array(np.arange(0, len(edges), 2)))


def _topics(subjects: pa.Array) -> pa.DictionaryArray:
    encoded = subjects.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, _text(encoded.dictionary))


def _text(column: pa.Array) -> pa.Array:
    """Bytes that are no UTF-8 are shown as ``\\xHH``: these are columns of text."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "backslashreplace") for name in column.to_pylist()], pa.string())


def _payloads(messages: Sequence[Sequence[bytes]]) -> pa.Array:
    """The content of each message, whose frames are joined; a message from Spark has one."""
    if all(len(message) == 2 for message in messages):
        return pa.array([message[1] for message in messages], _BINARY)
    return pa.array([b"".join(message[1:]) for message in messages], _BINARY)


def _headers(buffer: ByteArray, at: Int64s, ends: Int64s) -> tuple[pa.Array | None, dict[int, str]]:
    """One field of every message that has more of them, then the next: as many steps as the longest list, which takes a
    loop over its fields where it is very long. Returned, too: why headers of a message are left out, by row."""
    rows = np.flatnonzero(at + 3 <= ends)
    if not len(rows):
        return None, {}
    found: list[_Places] = []
    at = at[rows]
    for _ in range(_STEPS):
        if not len(rows):
            break
        tag, length = buffer[at], _number(buffer, at + 1, 2)
        body = at + 3
        whole = body + length <= ends[rows]
        ids = np.flatnonzero((tag == _ID) & whole)
        if len(ids):
            name = np.full(len(ids), len(buffer) - 1, np.int64)  # marks an id: no frame has a name there
            found.append((rows[ids], name, np.zeros_like(name), body[ids], length[ids]))
        fields = np.flatnonzero((tag == _HEADER) & whole & (length >= 2))
        name_length = _number(buffer, body[fields], 2)
        fits = name_length + 2 <= length[fields]
        fields, name_length = fields[fits], name_length[fits]
        value = body[fields] + 2 + name_length
        rest = length[fields] - 2 - name_length
        found.append((rows[fields], body[fields] + 2, name_length, value, rest))
        at = body + length
        more = np.flatnonzero(whole & (at + 3 <= ends[rows]))
        rows, at = rows[more], at[more]
    too_many = []
    for row, start in zip(rows.tolist(), at.tolist(), strict=True):
        if (places := _rest(buffer, row, start, int(ends[row]))) is None:
            too_many.append(row)
        else:
            found.append(places)
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    if too_many:
        readable = ~np.isin(columns[0], too_many)
        columns = [column[readable] for column in columns]
    return _grouped(buffer, len(ends), *columns), dict.fromkeys(too_many, TOO_MANY_HEADERS)


def _rest(buffer: ByteArray, row: int, at: int, end: int) -> _Places | None:
    """The fields of one message from ``at`` on, as those of :func:`_headers`; None: too many."""
    rest_bytes, no_name = buffer[at:end].tobytes(), len(buffer) - 1
    places = array("q")  # 32 bytes a field
    start = 0
    while start + 3 <= len(rest_bytes):
        tag, body = rest_bytes[start], start + 3
        start = body + (rest_bytes[start + 1] << 8 | rest_bytes[start + 2])
        if start > len(rest_bytes):
            break
        if tag == _ID:
            places.extend((no_name, 0, at + body, start - body))
        elif tag == _HEADER and start - body >= 2:
            name = body + 2
            value = name + (rest_bytes[body] << 8 | rest_bytes[body + 1])
            if value <= start:
                places.extend((at + name, value - name, at + value, start - value))
        if len(places) > 4 * MAX_HEADERS:
            return None
    one = np.frombuffer(places, np.int64).reshape(-1, 4).T
    return np.full(one.shape[1], row, np.int64), one[0], one[1], one[2], one[3]


def _grouped(
    buffer: ByteArray,
    n: int,
    rows: Int64s,
    name_at: Int64s,
    name_length: Int64s,
    value_at: Int64s,
    value_length: Int64s,
) -> pa.Array | None:
    """A map a message; values of one name come together, where the first of them stands."""
    if not len(rows):
        return None
    is_id = name_at == len(buffer) - 1
    order = np.lexsort((value_at, ~is_id, rows))  # the id first, then as they stood
    rows, is_id = rows[order], is_id[order]
    names = _taken(buffer, name_at[order], np.where(is_id, 0, name_length[order]))
    names = pc.if_else(pa.array(is_id), pa.scalar(ID_HEADER, _BINARY), names)
    values = _text(_taken(buffer, value_at[order], value_length[order]))
    names = _text(names)
    column = map_of_lines(n, rows, names, values)
    return _merged(n, rows, names, values) if column is None else column


def _merged(n: int, rows: Int64s, names: pa.Array, values: pa.Array) -> pa.Array:
    """Some message has a name twice, which few do: message by message."""
    found: list[dict[str, list[str]] | None] = [None] * n
    for row, name, value in zip(rows.tolist(), names.to_pylist(), values.to_pylist(), strict=True):
        fields = found[row]
        if fields is None:
            fields = found[row] = {}
        fields.setdefault(name, []).append(value)
    return pa.array([None if fields is None else list(fields.items()) for fields in found], HEADERS_TYPE)


def _taken(buffer: ByteArray, starts: Int64s, lengths: Int64s) -> pa.Array:
    """Slices of bytes in any order."""
    order = np.argsort(starts, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return _slices(buffer, starts[order], lengths[order]).take(pa.array(back))
