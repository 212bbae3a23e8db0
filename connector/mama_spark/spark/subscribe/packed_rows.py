"""Unpacks records into the rows of a task, in batches of bounded size; ``failOnCorrupt`` decides on corrupt packs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from mama_spark.errors import CorruptPack
from mama_spark.options import SubscribeOptions
from mama_spark.packing import (
    SchemaCast,
    Unpacked,
    announced_rows,
    as_json_column,
    unpack_chunks,
    unpacked_as_is,
)
from mama_spark.record_log import RecordLog, Records

from .message_columns import rows, tango_columns
from .schema import MessageColumns

log = logging.getLogger("mama_spark")

#: Sequences and payload bytes that are read to estimate the rows of a sequence.
SAMPLE_SEQUENCES, SAMPLE_BYTES = 16, 4 << 20


class Unpacking:
    """Unpacks the records of one task. For one thread.

    :param stream: of the records
    """

    def __init__(self, o: SubscribeOptions, columns: MessageColumns, stream: str) -> None:
        self._o, self._columns, self._stream = o, columns, stream
        self._transform = SchemaCast(columns.typed) if len(columns.typed) else _as_json if columns.as_json else None
        self._tango = tango_columns(o.fail_on_corrupt) if o.tango else None

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        """:raises MamaError: a corrupt pack or Tango record, with ``failOnCorrupt``"""
        if not self._o.unpack or self._o.tango:
            yield self._rows(records, unpacked_as_is(records))
            return
        for some, found in unpack_chunks(records, self._transform):
            if found.errors:
                self._report_corrupt(some, found)
            yield self._rows(some, found)

    def _rows(self, records: Records, found: Unpacked) -> pa.RecordBatch:
        return rows(records, found, self._stream, self._columns, self._o.include_headers, self._tango)

    def _report_corrupt(self, records: Records, found: Unpacked) -> None:
        row, why = next(iter(found.errors.items()))
        sequence = int(records.sequences[found.records[row]])
        text = f"the packed message with sequence {sequence} of stream {self._stream!r} cannot be read: {why}"
        if self._o.fail_on_corrupt:
            raise CorruptPack(f"{text}. With failOnCorrupt=false it is a row with the raw bytes and pack_error")
        more = f", and {len(found.errors) - 1:,} more" if len(found.errors) > 1 else ""
        log.warning("mamasub: %s%s; such a row has pack_error", text, more)


def _as_json(columns: pa.RecordBatch) -> pa.RecordBatch:
    """:raises ValueError: a value has no JSON, or all of it would be too large"""
    try:
        return as_json_column(columns)
    except ValueError as e:
        raise ValueError(f"{e}; name its columns by .schema()") from e


def rows_per_sequence(found: RecordLog, after: int, up_to: int, topics: tuple[str, ...]) -> float:
    """Estimate of the rows of a sequence in this range, from the headers of the first few. At least 1, because the next
    message of the topics may be far away."""
    sampled = size = 0
    until = min(up_to, after + SAMPLE_SEQUENCES)
    for records in found.read(after, until, topics):
        sampled += int(announced_rows(records).sum())
        size += records.payloads.nbytes
        if size > SAMPLE_BYTES:
            until = int(records.sequences[-1])
            break
    return max(1.0, sampled / max(1, until - after))
