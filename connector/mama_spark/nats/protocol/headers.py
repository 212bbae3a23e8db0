"""Encodes headers and message ids as a column of header blocks (NATS ADR-4), and rejects names and values that would
break the block. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import BadRow, PublishError, TooLarge
from mama_spark.contracts.headers import EXPECTED_LAST as EXPECTED_LAST
from mama_spark.contracts.headers import MSG_ID, NATS_PREFIX, HeaderLines, bad_values, reject_lines
from mama_spark.contracts.message import BYTES_OF_HEADERS, Bools, Int64s, MessageBatch, payload_sizes

EXPECTED_STREAM = "Nats-Expected-Stream"
TTL_SINCE = (2, 11)  #: first version of the server that honours TTLs, and leaves markers of what expired
TTL = "Nats-TTL"  #: of the message, in seconds or with a unit of Go
MARKER_REASON = "Nats-Marker-Reason"  #: set by the server: why the previous message of the subject was deleted
MAX_AGE = "MaxAge"  #: reason: its time to live has passed
#: Headers that rows may not have, in lower case, and what to do instead: they say how one message was published, and
#: would store another one otherwise than it is reported. Others of the server's (expectations, rollup, TTL, schedules)
#: have the effect that they have where a stream sources the message.
RESERVED = {
    MSG_ID.lower(): "is not for the headers: use the id column",
    **dict.fromkeys(
        # held back until the batch ends, and answered otherwise than a message of its own
        ("nats-batch-id", "nats-batch-sequence", "nats-batch-commit"),
        "belongs to atomic batches, which are not published here: leave it out",
    ),
    **dict.fromkeys(
        # stored nowhere and without an answer; fast ingest counts it as stored
        ("nats-trace-dest", "nats-trace-only", "nats-trace-hop", "nats-trace-origin-account"),
        "traces a message instead of storing it: leave it out",
    ),
    # purges the schedule of this name
    **dict.fromkeys(("nats-scheduler", "nats-schedule-next"), "is what a schedule of a stream writes: leave it out"),
    "nats-stream-source": "is what a stream with sources writes: leave it out",
    # a message of its own ignores it, and it ends a fast batch, whose messages are then in doubt
    "nats-required-api-level": "is for requests of the JetStream API: leave it out",
}
#: Fast ingest acknowledges a message with this header and does not store it, whatever the last id is.
EXPECTED_LAST_ID = "Nats-Expected-Last-Msg-Id"
#: Seen with nats-server 2.15.1: the leader answers that the id is another one, and each replica stops at the message
#: ("critical write error: last msgid mismatch"), also after a restart.
ENDS_REPLICATED_STREAMS = (
    f"nats-server ends a replicated stream for good where {EXPECTED_LAST_ID} is not the last id: leave it out; "
    f"{EXPECTED_LAST} does no harm"
)
MAX_BLOCK = 64 * 1024 - 1  #: the server stores the length of a block in 16 bits
_VERSION = b"NATS/1.0\r\n"
ID_HEAD = _VERSION + MSG_ID.encode() + b": "
#: NATS/1.0, Nats-Msg-Id: , and the two line ends
ID_OVERHEAD = len(_VERSION) + len(MSG_ID) + 2 + 4

_BINARY = pa.binary()
_EMPTY = b""  # no Arrow scalar at import: to make one loads pandas, which planners do not need


def rows_with(batch: MessageBatch, header: str) -> Int64s:
    """The rows that have this header, in upper or lower case."""
    if batch.headers is None:
        return np.zeros(0, np.int64)
    lines = HeaderLines.of(batch.headers)
    found = pc.equal(pc.utf8_lower(lines.names), header.lower()).to_numpy(zero_copy_only=False)
    return np.unique(lines.rows[found.astype(np.bool_)])


def blocks(batch: MessageBatch) -> tuple[Any, Int64s | None]:
    """Columns that make the header block of each message, and its length; Nones without headers and ids. With ids alone
    it is the column of ids (the framer adds the constant text around it), otherwise that of whole blocks."""
    ids = None if batch.ids is None else batch.ids.cast(_BINARY)
    if batch.headers is None:
        return (None, None) if ids is None else (ids, payload_sizes(ids) + ID_OVERHEAD)
    lines = _lines(batch.headers)
    parts: list[Any] = [pa.scalar(_VERSION, _BINARY)]
    if ids is not None:
        parts += [pa.scalar(f"{MSG_ID}: ".encode(), _BINARY), ids, pa.scalar(b"\r\n", _BINARY)]
    block = pc.binary_join_element_wise(*parts, lines, pa.scalar(b"\r\n", _BINARY), _EMPTY)
    return block, payload_sizes(block)


def blocks_of_few(batch: MessageBatch) -> list[bytes] | None:
    """The header block of each message, made in a loop; None without headers and ids."""
    if batch.headers is None and batch.ids is None:
        return None
    begins = [_VERSION] * len(batch)
    if batch.ids is not None:
        begins = [b"%b%b\r\n" % (ID_HEAD, text) for text in batch.ids.view(_BINARY).to_pylist()]
    if batch.headers is None:
        return [begin + b"\r\n" for begin in begins]
    lines = [
        b"".join([b"%b: %b\r\n" % (name, value) for name, values in entries or () for value in values or ()])
        for entries in batch.headers.view(BYTES_OF_HEADERS).to_pylist()
    ]
    return [b"%b%b\r\n" % parts for parts in zip(begins, lines, strict=True)]


def block_of(headers: Mapping[str, str]) -> bytes:
    lines = (f"{name}: {value}\r\n".encode() for name, value in headers.items())
    return b"%b%b\r\n" % (_VERSION, b"".join(lines))


def _widths(batch: MessageBatch, lines: HeaderLines | None) -> Int64s | None:
    """Lengths of the blocks of :func:`blocks`, without making them."""
    ids = None if batch.ids is None else payload_sizes(batch.ids) + ID_OVERHEAD
    if lines is None:
        return ids
    names, values, starts = lines
    upto = np.zeros(len(names) + 1, np.int64)
    if len(names):
        np.cumsum(payload_sizes(names) + payload_sizes(values) + len(b": \r\n"), out=upto[1:])
    widths: Int64s = upto[starts[1:]] - upto[starts[:-1]]
    return widths + (len(_VERSION) + 2 if ids is None else ids)


def _lines(headers: pa.Array) -> pa.Array:
    """``Name: value`` lines of each row as one text."""
    names, values, starts = HeaderLines.of(headers)
    text = pc.binary_join_element_wise(
        names.cast(_BINARY),
        pa.scalar(b": ", _BINARY),
        values.cast(_BINARY),
        pa.scalar(b"\r\n", _BINARY),
        _EMPTY,
        null_handling="replace",
        null_replacement=b"",
    )
    ends = np.frombuffer(text.buffers()[1], np.int32)[: len(text) + 1][starts].astype(np.int32)
    return pa.BinaryArray.from_buffers(_BINARY, len(headers), [None, pa.py_buffer(ends), text.buffers()[2]])


def check(batch: MessageBatch, max_payload: int, looked_into: str = "") -> tuple[dict[int, PublishError], Bools | None]:
    """Rows whose headers, id or size (at most ``max_payload`` bytes of header block and payload) are not allowed, and
    rows whose expectation forbids a blind resend; the expectation ``looked_into`` allows one, because its message is
    looked for when it fails."""
    bad: dict[int, PublishError] = {}
    non_retriable = None
    sizes = batch.sizes()
    lines = None if batch.headers is None else HeaderLines.of(batch.headers)
    if lines is not None:
        non_retriable = _check_lines(lines, bad, looked_into.lower())
    if batch.ids is not None:
        for row in np.flatnonzero(bad_values(batch.ids).to_numpy(zero_copy_only=False)).tolist():
            bad.setdefault(row, BadRow("the id is null or holds a line break"))
    if bad:  # rows that cannot become a block have no size
        good = np.setdiff1d(np.arange(len(batch)), np.fromiter(bad, np.int64, len(bad)))
        some = batch.take(good)
        lines = None if some.headers is None else HeaderLines.of(some.headers)
        _check_sizes(_widths(some, lines), sizes[good], good, max_payload, bad)
    else:
        _check_sizes(_widths(batch, lines), sizes, None, max_payload, bad)
    return bad, non_retriable


def _check_sizes(
    widths: Int64s | None, sizes: Int64s, rows: Int64s | None, max_payload: int, bad: dict[int, PublishError]
) -> None:
    totals = sizes if widths is None else sizes + widths
    if widths is not None and len(widths) and int(widths.max()) > MAX_BLOCK:
        for i in np.flatnonzero(widths > MAX_BLOCK).tolist():
            row = i if rows is None else int(rows[i])
            bad[row] = TooLarge(f"the header block has {widths[i]} bytes, a stream takes {MAX_BLOCK}")
    if len(totals) and int(totals.max()) > max_payload:
        for i in np.flatnonzero(totals > max_payload).tolist():
            row = i if rows is None else int(rows[i])
            text = f"payload and headers have {totals[i]} bytes, the server takes {max_payload}"
            bad.setdefault(row, TooLarge(text))


def _check_lines(lines: HeaderLines, bad: dict[int, PublishError], looked_into: str) -> Bools | None:
    if not len(lines.names):
        return None
    coded = lines.names.dictionary_encode()  # few names, many lines
    lower = pc.utf8_lower(coded.dictionary)
    if not pc.any(pc.starts_with(lower, NATS_PREFIX)).as_py():
        reject_lines(lines, bad)
        return None
    there, lower = RESERVED.keys() & set(lower.to_pylist()), lower.take(coded.indices)
    reject_lines(lines, bad, [(pc.equal(lower, name), RESERVED[name]) for name in sorted(there)])
    expects = pc.and_(pc.starts_with(lower, f"{NATS_PREFIX}expected-"), pc.not_equal(lower, looked_into))
    expects = expects.to_numpy(zero_copy_only=False)
    if not expects.any():
        return None
    non_retriable: Bools = np.zeros(len(lines.starts) - 1, np.bool_)
    non_retriable[lines.rows[expects]] = True
    return non_retriable
