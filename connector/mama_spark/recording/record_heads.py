"""Heads of one size that the records of a log begin with, of all payloads at once. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..contracts.message import Int64s, payload_bounds


def read_heads(payloads: pa.Array, head: np.dtype[Any]) -> tuple[Any, Int64s, Int64s, npt.NDArray[Any]]:
    """The bytes of binary payloads, where each begins and ends in them, and its head.

    :returns: heads, of zeros where a payload is shorter than one
    """
    bounds = payload_bounds(payloads)
    begins, ends, data = bounds[:-1], bounds[1:], payloads.buffers()[2] or b""
    if payloads.null_count:
        ends = np.where(payloads.is_valid().to_numpy(zero_copy_only=False), ends, begins)
    heads, whole = np.zeros(len(begins), head), ends - begins >= head.itemsize
    if whole.any():
        heads[whole] = at_each_byte(memoryview(data), head)[begins[whole]]
    return data, begins, ends, heads


def at_each_byte(data: bytearray | memoryview, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """The element that begins at each byte; the elements overlap."""
    return np.ndarray((len(data) - np.dtype(kind).itemsize + 1,), kind, data, strides=(1,))
