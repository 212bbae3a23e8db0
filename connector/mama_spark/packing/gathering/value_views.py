"""Views of values and payloads, joined from several arrays, in any order and with other bytes between. Pure.

Every value is described by a view of Arrow (BinaryView: length, four bytes, buffer, offset); the cast of an array of
views to one of binary values, which lie side by side, is the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...contracts.message import Bools, Int64s, payload_bounds, payload_views

#: Length, four bytes that the cast does not read, buffer, offset; or length and twelve bytes.
Views = npt.NDArray[np.int32]
INLINE = 12  #: bytes of the longest value that a view contains


@dataclass(frozen=True, slots=True)
class ValueViews:
    """Views of values of one or more arrays.

    :ivar views: views of the values, which are all longer than :data:`INLINE`
    :ivar buffers: buffers that they point into; behind each value lies at least one more byte
    """

    views: Views
    buffers: list[pa.Buffer]

    @property
    def sizes(self) -> Int64s:
        return self.views[:, 0].astype(np.int64)

    def take(self, index: Int64s) -> ValueViews:
        """Copies no value."""
        return ValueViews(elements(self.views)[index].view(np.int32).reshape(-1, 4), self.buffers)


def views_of(columns: Sequence[pa.Array]) -> ValueViews | None:
    """Views of all values of binary arrays, one array after the other; None = there are nulls or short values."""
    if any(column.null_count for column in columns):
        return None
    views = np.zeros((sum(map(len, columns)), 4), np.int32)
    buffers, ends, first = [column.buffers()[2] or pa.py_buffer(b"") for column in columns], [], 0
    for i, column in enumerate(columns):
        bounds = payload_bounds(column)
        some = views[first : first + len(column)]
        some[:, 0] = np.diff(bounds)
        some[:, 2] = i
        some[:, 3] = bounds[:-1]
        first += len(column)
        if len(column) and bounds[-1] == buffers[i].size:
            ends.append(first - 1)
    if len(views) and int(views[:, 0].min()) <= INLINE:
        return None
    for end in ends:  # nothing lies behind this value: it is copied, with an byte more
        size, _, which, begin = views[end].tolist()
        views[end, 2:] = len(buffers), 0
        buffers.append(pa.py_buffer(buffers[which].slice(begin, size).to_pybytes() + b"\0"))
    return ValueViews(views, buffers)


def elements(views: Views) -> npt.NDArray[np.complex128]:
    """Each view as one element; shares memory. Numpy copies elements of 16 bytes by index several times as fast as rows
    of four numbers."""
    return views.view(np.complex128)[:, 0]


def joined(views: Views, buffers: Sequence[pa.Buffer]) -> pa.Buffer:
    """The bytes of all views, one after the other: the one copy."""
    held = [None, pa.py_buffer(np.ascontiguousarray(views)), *buffers]
    values = pa.Array.from_buffers(pa.binary_view(), len(views), held).cast(pa.binary())
    found: pa.Buffer = values.buffers()[2]
    return found


def binary_of(data: bytes | pa.Buffer, sizes: Int64s) -> pa.Array:
    """A binary array over ``data``, cut at ``sizes``; shares memory."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


_ALIGNMENT = 8  #: bytes, of buffers of an Arrow IPC stream


@dataclass(frozen=True, slots=True)
class PayloadPlaces:
    """Places of some payloads in ``buffers``: which buffer each lies in, where it begins there, and its bytes."""

    buffers: list[pa.Buffer]
    which: Int64s
    begins: Int64s
    sizes: Int64s

    @classmethod
    def of_all(cls, payloads: pa.Array) -> Self:
        return cls.of(payloads, np.arange(len(payloads)))

    @classmethod
    def of(cls, payloads: pa.Array, at: Int64s) -> Self:
        """The places of the payloads ``at`` of a binary or binary_view array."""
        if not pa.types.is_binary_view(payloads.type):
            bounds, payload_bytes = payload_bounds(payloads), payloads.buffers()[2] or pa.py_buffer(b"")
            return cls([payload_bytes], np.zeros(len(at), np.int64), bounds[at], bounds[at + 1] - bounds[at])
        held = [held or pa.py_buffer(b"") for held in payloads.buffers()[1:]]
        views = payload_views(payloads)[at].astype(np.int64)
        which, begins, sizes = views[:, 2] + 1, views[:, 3], views[:, 0]
        short = sizes <= INLINE  # they lie in the views
        which[short], begins[short] = 0, 16 * (payloads.offset + at[short]) + 4
        return cls(held, which, begins, sizes)

    @classmethod
    def of_each(cls, payloads: list[bytes]) -> Self:
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        return cls([pa.py_buffer(payload) for payload in payloads], np.arange(len(sizes)), np.zeros_like(sizes), sizes)

    def take(self, some: Bools) -> Self:
        return replace(self, which=self.which[some], begins=self.begins[some], sizes=self.sizes[some])

    def pieces(self) -> list[memoryview]:
        """Shares memory."""
        held = [memoryview(buffer).cast("B") for buffer in self.buffers]
        each = zip(self.which.tolist(), self.begins.tolist(), self.sizes.tolist(), strict=True)
        return [held[which][begin : begin + size] for which, begin, size in each]

    def slices(self) -> list[pa.Buffer]:
        """Buffers of Arrow, which are not aligned; shares memory. A scalar of Arrow would be a copy."""
        each = zip(self.which.tolist(), self.begins.tolist(), self.sizes.tolist(), strict=True)
        return [self.buffers[which].slice(begin, size) for which, begin, size in each]

    def aligned_copies(self) -> list[pa.Buffer]:
        """Aligned as Arrow requires, in one allocation: to allocate a few kilobytes takes longer than to copy them."""
        padded_sizes = self.sizes + -self.sizes % _ALIGNMENT
        places = np.cumsum(padded_sizes) - padded_sizes
        whole = pa.allocate_buffer(int(padded_sizes.sum()))
        target = memoryview(whole).cast("B")
        found = []
        for source, size, place in zip(self.pieces(), self.sizes.tolist(), places.tolist(), strict=True):
            target[place : place + size] = source
            found.append(whole.slice(place, size))
        return found
