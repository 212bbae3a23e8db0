"""Groups of values to push: splits a table by attribute and event type. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.types import EVENT_NAMES, EventType, Quality

from .attribute_readings import AttributeReading, ReadingFactory

_KNOWN = ("device", "attribute", "value", "quality", "time", "written", "event")
_BY_NUMBER = tuple(Quality)


@dataclass(frozen=True, slots=True)
class ValueGroup:
    """Rows of one attribute and one event type, in order.

    :ivar times: nanoseconds since the epoch
    :ivar written: set values; None: there are none
    """

    device: str
    attribute: str
    event: EventType
    values: Sequence[Any]
    times: Sequence[int]
    qualities: Sequence[Quality]
    written: Sequence[Any] | None

    def readings(self, factory: ReadingFactory) -> list[AttributeReading]:
        """Make one reading for each row.

        :raises CdrError: a value is not of the attribute's type
        """
        written = self.written if self.written is not None else [None] * len(self.values)
        make = factory.make
        return [
            AttributeReading.invalid(time) if value is None else make(value, time, quality, more)
            for value, time, quality, more in zip(self.values, self.times, self.qualities, written, strict=True)
        ]


def group_values(
    columns: pa.Table | pa.RecordBatch | Mapping[str, Any], event: EventType, now: int
) -> Iterator[ValueGroup]:
    """Return the groups of a table, in the order of their first rows.

    :param event: event type of rows without an event
    :param now: time of rows without a time, nanoseconds since the epoch
    :raises ConfigError: a column is missing, unknown, or contains an invalid value
    """
    table = _table(columns)
    missing = [name for name in _KNOWN[:3] if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in _KNOWN]
    if missing or unknown:
        raise ConfigError(f"columns to push: {missing} missing, {unknown} not known; there are {', '.join(_KNOWN)}")
    names = [name for name in ("device", "attribute", "event") if name in table.column_names]
    for key, rows in _group_rows(table, names):
        part = table if len(rows) == len(table) else table.take(pa.array(rows))
        name = key.get("event")
        if name is not None and name not in EVENT_NAMES:
            raise ConfigError(f"unknown Tango event type in column event: {name!r:.100}")
        yield ValueGroup(
            key["device"], key["attribute"], event if name is None else EVENT_NAMES[name],
            part["value"].to_pylist(), _times(part, now), _qualities(part),
            part["written"].to_pylist() if "written" in part.column_names else None,
        )  # fmt: skip


def _table(columns: pa.Table | pa.RecordBatch | Mapping[str, Any]) -> pa.Table:
    if isinstance(columns, pa.Table):
        return columns
    if isinstance(columns, pa.RecordBatch):
        return pa.Table.from_batches([columns])
    return pa.table(dict(columns))


def _group_rows(table: pa.Table, names: list[str]) -> Iterator[tuple[dict[str, str], npt.NDArray[np.int64]]]:
    """Each combination of values in these columns, and its rows, in the order of the first rows."""
    code = np.zeros(len(table), np.int64)
    dictionaries: list[list[Any]] = []
    for name in names:
        column = pc.dictionary_encode(table[name].combine_chunks())
        if column.null_count:
            raise ConfigError(f"column {name} contains null")
        dictionaries.append(column.dictionary.to_pylist())
        code = code * max(1, len(dictionaries[-1])) + column.indices.to_numpy(zero_copy_only=False)
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.cumsum(np.bincount(inverse, minlength=len(first)))[:-1]
    parts = np.split(order, bounds)
    for number in np.argsort(first):
        rows, rest, key = parts[number], int(code[first[number]]), {}
        for name, values in zip(reversed(names), reversed(dictionaries), strict=True):
            rest, index = divmod(rest, max(1, len(values)))
            key[name] = str(values[index])
        yield key, rows


def _times(table: pa.Table, now: int) -> Sequence[int]:
    if "time" not in table.column_names:
        return [now] * len(table)
    column = table["time"]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
    if not pa.types.is_integer(column.type):
        raise ConfigError(f"column time must be a timestamp or integer nanoseconds, it is {column.type}")
    return [now if time is None else time for time in column.to_pylist()]


def _qualities(table: pa.Table) -> Sequence[Quality]:
    if "quality" not in table.column_names:
        return [Quality.VALID] * len(table)
    try:
        return [
            Quality.VALID if q is None else _BY_NUMBER[q] if isinstance(q, int) and q >= 0 else Quality[q.upper()]
            for q in table["quality"].to_pylist()
        ]
    except (KeyError, IndexError, AttributeError) as error:
        raise ConfigError(f"column quality contains an invalid quality: {error}") from None
