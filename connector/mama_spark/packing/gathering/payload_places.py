"""Where the payloads of packs lie: side by side in one buffer, or in the buffers in which they were received. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa

from ...contracts.message import Bools, Int64s, payload_bounds, payload_views
from .value_views import INLINE

_ALIGNMENT = 8  #: bytes, of buffers of an Arrow IPC stream


@dataclass(frozen=True, slots=True)
class PayloadPlaces:
    """Places of some payloads.

    :ivar buffers: that the payloads lie in
    :ivar which: buffer of each payload
    :ivar begins: offset of each in its buffer
    :ivar sizes: octets of each
    """

    buffers: list[pa.Buffer]
    which: Int64s
    begins: Int64s
    sizes: Int64s

    @classmethod
    def of_all(cls, payloads: pa.Array) -> Self:
        """The places of all payloads of a binary or binary_view array."""
        return cls.of(payloads, np.arange(len(payloads)))

    @classmethod
    def of(cls, payloads: pa.Array, at: Int64s) -> Self:
        """The places of the payloads ``at`` of a binary or binary_view array."""
        if not pa.types.is_binary_view(payloads.type):
            bounds, octets = payload_bounds(payloads), payloads.buffers()[2] or pa.py_buffer(b"")
            return cls([octets], np.zeros(len(at), np.int64), bounds[at], bounds[at + 1] - bounds[at])
        held, views = payloads.buffers()[1:], payload_views(payloads)[at].astype(np.int64)
        which, begins, sizes = views[:, 2] + 1, views[:, 3], views[:, 0]
        short = sizes <= INLINE  # they lie in the views
        which[short], begins[short] = 0, 16 * (payloads.offset + at[short]) + 4
        return cls(held, which, begins, sizes)

    @classmethod
    def of_each(cls, payloads: list[bytes]) -> Self:
        """The places of payloads that lie by themselves."""
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        return cls([pa.py_buffer(payload) for payload in payloads], np.arange(len(sizes)), np.zeros_like(sizes), sizes)

    def take(self, some: Bools) -> Self:
        """The places of ``some`` of the payloads."""
        return replace(self, which=self.which[some], begins=self.begins[some], sizes=self.sizes[some])

    def pieces(self) -> list[memoryview]:
        """The payloads; shares memory."""
        held = [memoryview(buffer).cast("B") for buffer in self.buffers]
        each = zip(self.which.tolist(), self.begins.tolist(), self.sizes.tolist(), strict=True)
        return [held[which][begin : begin + size] for which, begin, size in each]

    def slices(self) -> list[pa.Buffer]:
        """The payloads as buffers of Arrow, which are not aligned; shares memory. A scalar of Arrow would be a copy."""
        each = zip(self.which.tolist(), self.begins.tolist(), self.sizes.tolist(), strict=True)
        return [self.buffers[which].slice(begin, size) for which, begin, size in each]

    def aligned_copies(self) -> list[pa.Buffer]:
        """Copies of the payloads, aligned as Arrow requires, in one allocation: to allocate a few kilobytes takes
        longer than to copy them."""
        padded_sizes = self.sizes + -self.sizes % _ALIGNMENT
        places = np.cumsum(padded_sizes) - padded_sizes
        whole = pa.allocate_buffer(int(padded_sizes.sum()))
        target = memoryview(whole).cast("B")
        found = []
        for source, size, place in zip(self.pieces(), self.sizes.tolist(), places.tolist(), strict=True):
            target[place : place + size] = source
            found.append(whole.slice(place, size))
        return found
