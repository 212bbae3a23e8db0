"""Encodes a batch of messages as PUB and HPUB frames (headers: NATS ADR-4). Pure.

One element-wise join of Arrow makes the frames of a batch; its values buffer is written to the socket. Large messages
are few: a loop makes the head of each, which costs less than calls for columns, and leaves their payloads in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.message import Int64s, MessageBatch, decimal_digits, fixed_width, payload_bounds

from . import headers as hd

MAX_CONTROL_LINE = 4096
TOKEN_WIDTH = 12  #: digits: fixed, so that acknowledgements can be parsed as columns
#: Payloads of at least this size are passed on as views instead of being copied into the joined buffer.
BIG = 16 * 1024
_FEW = 2 * 1024  #: ... where the messages of a batch have so many bytes on average: they are few enough for a loop

_BINARY = pa.binary()
_EMPTY = b""  # no Arrow scalar at import: to make one loads pandas, which planners do not need
_CRLF = b"\r\n"
_BLANK = b" "


@dataclass(frozen=True, slots=True)
class ReplySubject:
    """The reply subject: ``prefix``, a fixed-width token, ``suffix``; no token when ``numbered`` is False."""

    prefix: bytes
    suffix: bytes = b""
    numbered: bool = True


@dataclass(frozen=True, slots=True)
class PublishFrames:
    """Bytes of whole frames, in order: bytes-like ``pieces`` to write one after the other, ``size`` bytes in all."""

    pieces: list[bytes | memoryview]
    size: int


def message_frame(subject: str, payload: bytes, reply: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """One message as a frame; its subject and headers must have been checked."""
    to = b" ".join(filter(None, (subject.encode(), reply)))
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (to, len(payload), payload)
    block = hd.block_of(headers)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(block), len(block) + len(payload), block, payload)


def tokens(first: int, n: int) -> pa.Array:
    """``n`` consecutive numbers as zero-padded text of :data:`TOKEN_WIDTH` digits."""
    return fixed_width(decimal_digits(first, n, TOKEN_WIDTH))


class Framer:
    """Encodes frames; caches the topic prefixes of the last dictionary."""

    def __init__(self, reply: ReplySubject | None) -> None:
        self.reply = reply
        self._known: tuple[Any, ...] | None = None
        self._prefixes: pa.Array = pa.array([], _BINARY)

    def frames(self, batch: MessageBatch, first_token: int = 0, order: Int64s | None = None) -> PublishFrames:
        """Frames of all messages of a batch; its rows must have been checked.

        :param order: rows in the order of sending; row i keeps the token ``first_token + i``. None = as they stand
        """
        n = len(batch)
        sizes = batch.sizes()
        if n and int(sizes.max()) >= BIG and int(sizes.sum()) >= _FEW * n:
            return self._large(batch, first_token, range(n) if order is None else order.tolist())
        block, widths = hd.blocks(batch)
        head: list[Any] = [self._prefix(batch.topics, block is not None)]
        if self.reply is not None and self.reply.numbered:
            head.append(tokens(first_token, n))
        head += self._tail(sizes, block, widths, batch)
        payloads = batch.payloads if batch.payloads.type == _BINARY else batch.payloads.cast(_BINARY)
        joined = pc.binary_join_element_wise(*head, payloads, _CRLF, _EMPTY)
        if order is not None:
            joined = joined.take(pa.array(order))
        size = int(np.frombuffer(joined.buffers()[1], np.int32)[n])
        return PublishFrames([memoryview(joined.buffers()[2] or b"")[:size]], size)

    def _large(self, batch: MessageBatch, first_token: int, order: Iterable[int]) -> PublishFrames:
        blocks = hd.blocks_of_few(batch)
        prefixes = self._prefix(batch.topics, blocks is not None).to_pylist()
        suffix = b"" if self.reply is None else self.reply.suffix
        numbered = self.reply is not None and self.reply.numbered
        bounds, payload_bytes = payload_bounds(batch.payloads).tolist(), memoryview(batch.payloads.buffers()[2] or b"")
        pieces: list[bytes | memoryview] = []
        size, end = 0, b""  # of the message before, which is written together with the head of the next one
        for row in order:
            a, b = bounds[row], bounds[row + 1]
            head = prefixes[row]
            if numbered:
                head += b"%0*d" % (TOKEN_WIDTH, first_token + row)
            if blocks is None:
                head += b"%b %d\r\n" % (suffix, b - a)
            else:
                width = len(blocks[row])
                head += b"%b %d %d\r\n%b" % (suffix, width, width + b - a, blocks[row])
            pieces += (end + head, payload_bytes[a:b])
            size += len(head) + b - a + len(_CRLF)
            end = _CRLF
        pieces.append(_CRLF)
        return PublishFrames(pieces, size)

    def _prefix(self, topics: pa.DictionaryArray, with_headers: bool) -> pa.Array:
        names = topics.dictionary
        values = names.buffers()[2]
        known = (values.address if values else 0, names.offset, len(names), with_headers, self.reply)
        if known != self._known or not len(names):
            op = pa.scalar(b"HPUB " if with_headers else b"PUB ", _BINARY)
            reply = b"" if self.reply is None else b" " + self.reply.prefix
            made = pc.binary_join_element_wise(op, names.cast(_BINARY), pa.scalar(reply, _BINARY), _EMPTY)
            self._known, self._prefixes, self._names = known, made, names  # the reference keeps the address valid
        return self._prefixes.take(topics.indices)

    def _tail(self, sizes: Int64s, block: Any, widths: Int64s | None, batch: MessageBatch) -> list[Any]:
        """The part of each frame from the end of the token to the payload."""
        begin = b"" if self.reply is None else self.reply.suffix
        if block is None:
            return [_numbers([sizes], begin, b"\r\n")] if _uniform(sizes) else _numbers_column([sizes], begin, b"\r\n")
        assert widths is not None
        totals = widths + sizes
        only_id = batch.headers is None
        end = b"\r\n" + hd.ID_HEAD if only_id else b"\r\n"
        body = [block, pa.scalar(b"\r\n\r\n", _BINARY)] if only_id else [block]
        if _uniform(widths) and _uniform(totals):
            return [_numbers([widths, totals], begin, end), *body]
        return [*_numbers_column([widths, totals], begin, end), *body]


def _uniform(values: Int64s) -> bool:
    return bool((values == values[0]).all()) if len(values) else True


def _numbers(columns: list[Int64s], begin: bytes, end: bytes) -> Any:
    """One constant: all rows must have the same sizes."""
    text = b"".join(b" %d" % (c[0] if len(c) else 0) for c in columns)
    return pa.scalar(begin + text + end, _BINARY)


def _numbers_column(columns: list[Int64s], begin: bytes, end: bytes) -> list[Any]:
    parts: list[Any] = []
    for i, column in enumerate(columns):
        parts.append(pa.scalar(begin + b" ", _BINARY) if i == 0 else _BLANK)
        parts.append(pa.array(column).cast(pa.string()).cast(_BINARY))
    return [*parts, pa.scalar(end, _BINARY)]
