"""Records become the rows of a task: packed messages as many as they carry, what is no whole pack as ``failOnCorrupt``
says, every batch of bounded size."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from mama_spark.errors import CorruptPack
from mama_spark.options import SubscribeOptions
from mama_spark.packing import SchemaCast, Unpacked, announced_rows, check_json_size, unpack_chunks, unpacked_as_is
from mama_spark.record_log import RecordLog, Records

from ..json_rows import json_rows
from .message_columns import rows, tango_columns
from .schema import MessageColumns

log = logging.getLogger("mama_spark")

#: Sequences and payload bytes that are looked at to tell how many rows a sequence has.
SAMPLE, SAMPLE_BYTES = 16, 4 << 20
#: Bytes of JSON that are made together: Python objects of rows take several times as many.
_TEXT_BYTES = 16 << 20


class Unpacking:
    """What one task makes of records. For one thread.

    :param stream: that they are of
    """

    def __init__(self, o: SubscribeOptions, shape: MessageColumns, stream: str) -> None:
        self._o, self._shape, self._stream = o, shape, stream
        self._make = SchemaCast(shape.typed) if len(shape.typed) else _as_json if shape.as_json else None
        self._tango = tango_columns(o.fail_on_corrupt) if o.tango else None

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        """:raises MamaError: a pack or a record of Tango that cannot be read, and that is to fail"""
        if not self._o.unpack or self._o.tango:
            yield self._rows(records, unpacked_as_is(records))
            return
        for some, found in unpack_chunks(records, self._make):
            if found.errors:
                self._tell(some, found)
            yield self._rows(some, found)

    def _rows(self, records: Records, found: Unpacked) -> pa.RecordBatch:
        return rows(records, found, self._stream, self._shape, self._o.include_headers, self._tango)

    def _tell(self, records: Records, found: Unpacked) -> None:
        row, why = next(iter(found.errors.items()))
        sequence = int(records.sequences[found.records[row]])
        text = f"the packed message with sequence {sequence} of stream {self._stream!r} cannot be read: {why}"
        if self._o.fail_on_corrupt:
            raise CorruptPack(f"{text}. With failOnCorrupt=false it is a row with the raw bytes and pack_error")
        more = f", and {len(found.errors) - 1:,} more" if len(found.errors) > 1 else ""
        log.warning("mamasub: %s%s; such a row has pack_error", text, more)


def _as_json(columns: pa.RecordBatch) -> pa.RecordBatch:
    """:raises ValueError: a value has no JSON here, or all of it would be too large"""
    n, names = columns.num_rows, columns.schema.names
    try:
        step = max(1, n * _TEXT_BYTES // max(_TEXT_BYTES, check_json_size(columns)))
        made = [json_rows(columns.slice(start, step), names) for start in range(0, n, step)]
        return pa.RecordBatch.from_arrays([pa.concat_arrays(made)], ["value"])
    except (TypeError, LookupError, ArithmeticError) as e:  # a LookupError: no such time zone
        raise ValueError(f"it cannot be JSON ({e}); name its columns by .schema()") from e


def rows_each(found: RecordLog, after: int, up_to: int, topics: tuple[str, ...]) -> float:
    """Rows that a sequence of this range has, about: of the first few, as their headers tell. At least one, for nobody
    knows how far away the next message of the topics is."""
    sampled = size = 0
    until = min(up_to, after + SAMPLE)
    for records in found.read(after, until, topics):
        sampled += int(announced_rows(records).sum())
        size += records.payloads.nbytes
        if size > SAMPLE_BYTES:
            until = int(records.sequences[-1])
            break
    return max(1.0, sampled / max(1, until - after))
