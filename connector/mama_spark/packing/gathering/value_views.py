"""Joins values of several arrays, in any order and with other octets between them, in one copy. Pure.

Every value is described by a view of Arrow (BinaryView: length, four octets, buffer, offset); the cast of an array of
views to one of binary values, which lie side by side, is the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...message import Int64s, payload_bounds

#: One row an element: length, four octets that the cast does not read, buffer, offset; or length and twelve octets.
Views = npt.NDArray[np.int32]
INLINE = 12  #: octets of the longest value that a view contains


@dataclass(frozen=True, slots=True)
class ValueViews:
    """Views of values of one or more arrays.

    :ivar views: of the values, which are all longer than :data:`INLINE`
    :ivar buffers: that they point into
    """

    views: Views
    buffers: list[pa.Buffer]

    @property
    def sizes(self) -> Int64s:
        """Octets of each value."""
        return self.views[:, 0].astype(np.int64)

    def take(self, index: Int64s) -> ValueViews:
        """Of the values at ``index``; copies no value."""
        return ValueViews(self.views[index], self.buffers)


def views_of(columns: Sequence[pa.Array]) -> ValueViews | None:
    """Views of all values of binary arrays, one array after the other; None = they have nulls or values that are too
    short."""
    if any(column.null_count for column in columns):
        return None
    views = np.zeros((sum(map(len, columns)), 4), np.int32)
    first = 0
    for i, column in enumerate(columns):
        bounds = payload_bounds(column)
        some = views[first : first + len(column)]
        some[:, 0] = np.diff(bounds)
        some[:, 2] = i
        some[:, 3] = bounds[:-1]
        first += len(column)
    if len(views) and int(views[:, 0].min()) <= INLINE:
        return None
    return ValueViews(views, [column.buffers()[2] or pa.py_buffer(b"") for column in columns])


def inline(value: bytes) -> Views:
    """The view of a short constant."""
    return np.frombuffer(len(value).to_bytes(4, "little") + value.ljust(INLINE, b"\0"), np.int32)


def joined(views: Views, buffers: Sequence[pa.Buffer]) -> pa.Buffer:
    """The octets of all views, one after the other: the one copy."""
    held = [None, pa.py_buffer(np.ascontiguousarray(views)), *buffers]
    values = pa.Array.from_buffers(pa.binary_view(), len(views), held).cast(pa.binary())
    found: pa.Buffer = values.buffers()[2]
    return found
