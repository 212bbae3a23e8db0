"""Entries of header maps of many rows, and the maps that they become. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import HEADERS_TYPE, Int64s


@dataclass(frozen=True, slots=True)
class HeaderEntries:
    """Header entries of many rows: row, name, list of values."""

    rows: Int64s
    names: pa.Array
    values: pa.Array


def header_maps(entries: Sequence[HeaderEntries], n: int) -> pa.Array:
    """One map a row of all entries; entries of a row keep the order given."""
    rows = np.concatenate([e.rows for e in entries])
    order = np.argsort(rows, kind="stable")
    names = pa.concat_arrays([e.names for e in entries]).take(pa.array(order))
    values = pa.concat_arrays([e.values for e in entries]).take(pa.array(order))
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=n), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), names, values).cast(HEADERS_TYPE)


def one_value_lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), values)


def part_entries(parts: pa.RecordBatch) -> list[HeaderEntries]:
    """The parts of the topics as headers.

    :param parts: string columns by the name of their header
    """
    entries = []
    for name, values in zip(parts.schema.names, parts.columns, strict=True):
        there = np.flatnonzero(np.asarray(values.is_valid()))
        entries.append(HeaderEntries(there, pa.repeat(name, len(there)), one_value_lists(values.take(pa.array(there)))))
    return entries
