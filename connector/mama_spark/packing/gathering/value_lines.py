"""Reads packs of lines, many at a time: the lines of all payloads in one copy, without their line feeds. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...contracts.message import Bools, Int64s
from .value_views import INLINE, PayloadPlaces, binary_of, joined

_LINE_FEED = 10
_WINDOW = 1 << 18  #: bytes that are searched at a time; the search allocates at most nine times as many
_FEW = 1 << 11  #: bytes for each short line, above which it is faster to fill the views of these one by one


def values_of_lines(payloads: PayloadPlaces, announced: Int64s) -> tuple[pa.Array, Int64s]:
    """The lines of all payloads that have as many as announced, one after the other, and how many each payload has.

    Lines that nobody announced cost no memory: an empty line takes more than its line feed.
    """
    ends, there = _line_ends(payloads.pieces(), announced)
    good = there == announced
    if not good.any():
        return pa.array([], pa.binary()), there
    payloads, counts, stops = payloads.take(good), there[good], np.concatenate(ends)
    starts = np.empty_like(stops)
    starts[1:] = stops[:-1] + 1
    starts[np.cumsum(counts) - counts] = 0
    sizes = stops - starts
    short = np.flatnonzero(sizes <= INLINE)
    if len(short) * _FEW > int(sizes.sum()):
        line_bytes = _without_line_feeds(payloads)
    else:
        line_bytes = _joined_lines(payloads, counts, starts, sizes, short)
    return binary_of(line_bytes, sizes), there


def _line_ends(pieces: list[memoryview], announced: Int64s) -> tuple[list[Int64s], Int64s]:
    """Ends of the lines in each payload that has as many as announced, and the number in each payload."""
    mask: Bools = np.empty(min(_WINDOW, max(map(len, pieces), default=0) + 1), np.bool_)
    ends, there = list[Int64s](), np.zeros(len(pieces), np.int64)
    for i, (piece, most) in enumerate(zip(pieces, announced.tolist(), strict=True)):  # packs, not rows
        piece_bytes, count, found = np.frombuffer(piece, np.uint8), 0, list[Int64s]()
        for start in range(0, len(piece_bytes) + 1, len(mask)):
            here = mask[: len(piece_bytes) + 1 - start]
            some = piece_bytes[start : start + len(here)]
            np.equal(some, _LINE_FEED, out=here[: len(some)])
            here[len(some) :] = True  # the last line ends with the payload
            at = np.flatnonzero(here)
            count += len(at)
            if count <= most:
                found.append(at + start if start else at)
        there[i] = count
        if count == most:
            ends += found
    return ends, there


def _without_line_feeds(payloads: PayloadPlaces) -> pa.Buffer:
    pieces = [np.frombuffer(piece, np.uint8) for piece in payloads.pieces()]
    return pa.py_buffer(np.concatenate([piece_bytes[piece_bytes != _LINE_FEED] for piece_bytes in pieces]))


def _joined_lines(payloads: PayloadPlaces, counts: Int64s, starts: Int64s, sizes: Int64s, short: Int64s) -> pa.Buffer:
    """The bytes of all lines, copied once.

    :param counts: lines of each payload
    :param starts: offset of each line in its payload
    :param short: lines whose views contain them
    """
    views = np.zeros((len(sizes), 4), np.int32)
    views[:, 0], views[:, 2] = sizes, np.repeat(payloads.which, counts)
    views[:, 3] = starts + np.repeat(payloads.begins, counts)
    if len(short):
        pieces, rest = payloads.pieces(), views.view(np.uint8)[:, 4:]
        payload = np.searchsorted(np.cumsum(counts), short, "right")
        each = zip(short.tolist(), payload.tolist(), starts[short].tolist(), sizes[short].tolist(), strict=True)
        for line, at, start, size in each:  # few of them
            rest[line, :size] = pieces[at][start : start + size]
    return joined(views, payloads.buffers)
