"""Checks messages and encodes them as MLP frames, or as one block. Pure.

What all messages of a subject have in common is encoded once; ids and headers, which differ, are joined by Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import BadRow, BadTopic, PublishError, TooLarge
from mama_spark.contracts.headers import MAX_HEADERS, HeaderLines, bad_values, reject_lines
from mama_spark.contracts.message import Bools, Int64s, MessageBatch, payload_sizes
from mama_spark.contracts.topics import unpublishable, why_unpublishable
from mama_spark.malamute.protocol.commands import MAX_STRING, StreamSend, encode
from mama_spark.malamute.protocol.message_blocks import pack

#: Bytes of payload, headers and id together. The protocol has no limit; a broker holds whole messages in memory.
MAX_PAYLOAD = 16 * 1024 * 1024
_MAX_FIELD = 65_535  #: bytes of an id, or of a header's name and value

_BINARY = pa.binary()
_EMPTY = b""  # no Arrow scalar at import: to make one loads pandas, which planners do not need
_BLOCK = b"MS\x01"  #: extensions, version 1
_ID, _HEADER = 7, 8


def frames(batch: MessageBatch) -> list[Sequence[bytes]]:
    """STREAM SEND and payload of each message; ids and headers, for our own broker only, stand behind the subject."""
    heads, indices = _heads(batch)
    extensions = _extensions(batch)
    commands: list[bytes]
    if extensions is None:
        commands = np.array([*heads, b""], dtype=object)[indices].tolist()
    else:
        commands = _commands(heads, indices, extensions).to_pylist()
    return list(zip(commands, batch.payloads.to_pylist(), strict=True))


def block(batch: MessageBatch) -> list[bytes]:
    """All messages as one (:mod:`mama_spark.malamute.protocol.message_blocks`), without a step for each."""
    heads, indices = _heads(batch)
    command_lengths, commands = _joined(_commands(heads, indices, _extensions(batch)))
    lengths, payloads = _joined(batch.payloads)
    return pack(len(batch), command_lengths + lengths, commands, payloads)


def _heads(batch: MessageBatch) -> tuple[list[bytes], Int64s]:
    """STREAM SENDs of all topics that are used, and which of them is whose."""
    # the dictionary may have many others, and topics of rows that may not be sent
    used, indices = np.unique(batch.topics.indices.to_numpy(zero_copy_only=False), return_inverse=True)
    topics = batch.topics.dictionary.take(pa.array(used)).to_pylist()
    return [encode(StreamSend(topic.encode()))[0] for topic in topics], indices


def _commands(heads: list[bytes], indices: Int64s, extensions: pa.Array | None) -> pa.Array:
    column = pa.array(heads, _BINARY).take(pa.array(indices))
    return column if extensions is None else pc.binary_join_element_wise(column, extensions, _EMPTY)


def _joined(values: pa.Array) -> tuple[bytes, bytes]:
    """Lengths of all values, as number-4, and the values one after another."""
    values = values.cast(_BINARY)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    data_bytes = b"" if data is None else data.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()
    return np.diff(offsets).astype(">u4").tobytes(), data_bytes


def by_stream(batch: MessageBatch, default: str) -> list[tuple[str, Int64s]]:
    """The rows for each stream (``default`` if they name none), ascending; streams in the order of their first rows."""
    if batch.streams is None:
        return [(default, np.arange(len(batch)))] if len(batch) else []
    codes = batch.streams.indices.to_numpy(zero_copy_only=False)
    used, first = np.unique(codes, return_index=True)
    names = batch.streams.dictionary
    if len(used) == 1:
        return [(names[int(used[0])].as_py(), np.arange(len(batch)))]
    order = np.argsort(codes, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return [(names[int(used[i])].as_py(), rows[i]) for i in np.argsort(first).tolist()]


def _extensions(batch: MessageBatch) -> pa.Array | None:
    """The block of each message; empty where it has neither id nor headers."""
    parts = []
    if batch.ids is not None:
        ids = batch.ids.cast(_BINARY)
        parts.append(pc.if_else(pc.equal(pc.binary_length(ids), 0), _EMPTY, _field(_ID, ids)))
    if batch.headers is not None:
        parts.append(_headers(batch.headers))
    if not parts:
        return None
    fields = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _EMPTY)
    block = pc.binary_join_element_wise(pa.scalar(_BLOCK, _BINARY), fields, _EMPTY)
    return pc.if_else(pc.equal(pc.binary_length(fields), 0), _EMPTY, block)


def _field(tag: int, values: pa.Array) -> pa.Array:
    lengths = payload_sizes(values)
    sizes, which = np.unique(lengths, return_inverse=True)
    heads = pa.array([struct.pack(">BH", tag, n) for n in sizes.tolist()], _BINARY).take(pa.array(which.reshape(-1)))
    return pc.binary_join_element_wise(heads, values, _EMPTY)


def _headers(headers: pa.Array) -> pa.Array:
    names, values, starts = HeaderLines.of(headers)
    names, values = names.cast(_BINARY), values.cast(_BINARY)
    lengths = payload_sizes(names)
    sizes, which = np.unique(lengths, return_inverse=True)
    heads = pa.array([struct.pack(">H", n) for n in sizes.tolist()], _BINARY).take(pa.array(which.reshape(-1)))
    fields = _field(_HEADER, pc.binary_join_element_wise(heads, names, values, _EMPTY))
    ends = np.frombuffer(fields.buffers()[1], np.int32)[fields.offset : fields.offset + len(fields) + 1]
    offsets = ends[starts].astype(np.int32)
    return pa.BinaryArray.from_buffers(_BINARY, len(headers), [None, pa.py_buffer(offsets), fields.buffers()[2]])


def check(batch: MessageBatch, carries: bool) -> list[tuple[int, PublishError]]:
    """Rows that may not be sent, with the reason, ascending; ``carries``: to our own broker, with headers and ids."""
    bad: dict[int, PublishError] = {}
    _check_topics(batch.topics, bad)
    if batch.streams is not None:
        _check_streams(batch.streams, bad)
    totals = pc.fill_null(pc.binary_length(batch.payloads), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if batch.headers is not None:
        totals = totals + _check_headers(batch.headers, carries, bad)
    if batch.ids is not None and carries:
        lengths = pc.binary_length(batch.ids)
        wrong = pc.fill_null(pc.or_(pc.greater(lengths, _MAX_FIELD), bad_values(batch.ids)), True)
        for row in np.flatnonzero(wrong.to_numpy(zero_copy_only=False)).tolist():
            bad.setdefault(row, BadRow(f"the id is null, holds a line break, or is longer than {_MAX_FIELD} bytes"))
        totals = totals + pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(totals > MAX_PAYLOAD).tolist():
        text = f"payload, headers and id have {totals[row]} bytes, the bridge sends {MAX_PAYLOAD}"
        bad.setdefault(row, TooLarge(text))
    return sorted(bad.items())


def _check_topics(topics: pa.DictionaryArray, bad: dict[int, PublishError]) -> None:
    names = topics.dictionary
    too_long = pc.fill_null(pc.greater(pc.binary_length(names), MAX_STRING), True).to_numpy(zero_copy_only=False)
    for row in _faulty_rows(topics, unpublishable(names) | too_long):
        if (fault := _why(topics[row].as_py())) is not None:
            bad[row] = BadTopic(fault)


def _check_streams(streams: pa.DictionaryArray, bad: dict[int, PublishError]) -> None:
    names = streams.dictionary
    wrong = pc.or_(pc.match_substring_regex(names, r"\x00|^$"), pc.greater(pc.binary_length(names), MAX_STRING))
    for row in _faulty_rows(streams, pc.fill_null(wrong, True).to_numpy(zero_copy_only=False)):
        bad.setdefault(row, BadRow(f"the stream is null, empty, longer than {MAX_STRING} bytes, or has a NUL"))


def _faulty_rows(column: pa.DictionaryArray, faults: Bools) -> list[int]:
    """The rows that are null or have a value of the dictionary that is one of the ``faults``."""
    if not faults.any() and not column.null_count:
        return []
    indices = pc.fill_null(column.indices, len(faults)).to_numpy(zero_copy_only=False)
    found: list[int] = np.flatnonzero(np.append(faults, True)[indices]).tolist()  # the last one: null
    return found


def _why(topic: str | None) -> str | None:
    if topic is None:
        return "the topic is null"
    if len(topic.encode()) > MAX_STRING:
        return f"a topic of {len(topic.encode())} bytes; a subject has at most {MAX_STRING}"
    return why_unpublishable(topic)


def _check_headers(headers: pa.Array, carries: bool, bad: dict[int, PublishError]) -> Int64s:
    lines = HeaderLines.of(headers)
    sizes: Int64s = np.zeros(len(headers), np.int64)
    if not len(lines.names):
        return sizes
    if not carries:
        for row in np.unique(lines.rows).tolist():
            bad.setdefault(row, BadRow("this broker carries no headers; mama broker does"))
        return sizes
    widths = pc.add(pc.fill_null(pc.binary_length(lines.names), 0), pc.fill_null(pc.binary_length(lines.values), 0))
    reject_lines(lines, bad, [(pc.greater(widths, _MAX_FIELD - 2), f"has more than {_MAX_FIELD - 2} bytes")])
    per_row = np.diff(lines.starts)
    for row in np.flatnonzero(per_row > MAX_HEADERS).tolist():
        bad.setdefault(row, BadRow(f"{per_row[row]:,} headers; a message has at most {MAX_HEADERS:,}"))
    np.add.at(sizes, lines.rows, widths.to_numpy(zero_copy_only=False) + 5)
    return sizes
