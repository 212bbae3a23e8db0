"""Decompresses and unpacks records into the rows of a task, in batches of bounded size. ``mode`` and ``failOnCorrupt``
decide on messages that do not fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type

from mama_spark.contracts.errors import CorruptPack
from mama_spark.contracts.message import as_binary
from mama_spark.contracts.record_log import RecordLog, Records
from mama_spark.options import SubscribeOptions
from mama_spark.packing.chunked_unpack import unpack_chunks
from mama_spark.packing.decompress import decompressed
from mama_spark.packing.json_text import as_json_column
from mama_spark.packing.pack_headers import announced_rows
from mama_spark.packing.schema_cast import SchemaCast
from mama_spark.packing.unpacked import Unpacked
from mama_spark.packing.unpacker import unpacked_as_is

from .message_columns import row_decoder, rows
from .schema import MessageColumns

log = logging.getLogger("mama_spark")

#: Sequences and payload bytes that are read for an estimate of the rows of a sequence.
SAMPLE_SEQUENCES, SAMPLE_BYTES = 16, 4 << 20


class RowUnpacker:
    """Unpacks the records of one task. Not thread-safe."""

    def __init__(self, o: SubscribeOptions, columns: MessageColumns, stream: str) -> None:
        self._o, self._columns, self._stream = o, columns, stream
        self._cast = SchemaCast(columns.typed, _type_name) if len(columns.typed) and columns.decoded is None else None
        self._transform = self._cast or (_as_json if columns.as_json else None)
        self._decoder = row_decoder(columns, o.fail_on_corrupt)
        self._malformed = 0

    @property
    def undecodable(self) -> int:
        """Number of messages so far that could not be decoded, unpacked or decompressed."""
        return self._malformed + (0 if self._decoder is None else self._decoder.bad)

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        """Batches of rows. MamaError: a message does not fit (``FAILFAST``), or is a bad record (``failOnCorrupt``)."""
        for some, found in self._unpacked(records):
            if some.faults:
                found.errors.update(_faults_of_rows(some, found))
            made = self._rows(some, found)
            if found.errors and self._decoder is None:  # the decoder's column has the reasons
                self._report_malformed(some, found)
                if self._columns.mode == "dropmalformed":
                    fits = np.ones(len(found), np.bool_)
                    fits[list(found.errors)] = False
                    made = made.filter(pa.array(fits))
            yield made

    def _unpacked(self, records: Records) -> Iterator[tuple[Records, Unpacked]]:
        o, decoded = self._o, self._columns.decoded
        if o.decompress or decoded is not None or not o.unpack:
            records = replace(records, payloads=as_binary(records.payloads))
        for some, reasons in decompressed(records, o.max_decompressed_bytes) if o.decompress else [(records, {})]:
            if reasons:
                yield some, replace(unpacked_as_is(some), errors=reasons)
            elif decoded is not None and decoded.packed:
                yield from unpack_chunks(some)
            elif decoded is None and o.unpack:
                yield from unpack_chunks(some, self._transform, only_typed=self._columns.needs_typed_rows)
            else:
                yield some, unpacked_as_is(some)

    def finish(self) -> None:
        """Log the bad messages of the task; called after its last batch."""
        if self._malformed and self._cast is not None:
            fate = "are left out" if self._columns.mode == "dropmalformed" else "are rows without values"
            log.warning("mamasub: %s messages of stream %r %s: they do not fit .schema() (mode=%s)",
                        f"{self._malformed:,}", self._stream, fate, self._columns.mode.upper())  # fmt: skip
        for name, hint in (self._cast.misspelled if self._cast is not None else {}).items():
            log.warning("mamasub: stream %r has packs without column %r, which is null; %s", self._stream, name, hint)

    def _rows(self, records: Records, found: Unpacked) -> pa.RecordBatch:
        return rows(records, found, self._stream, self._columns, self._o.include_headers, self._decoder)

    def _report_malformed(self, records: Records, found: Unpacked) -> None:
        self._malformed += len(found.errors)
        row, why = next(iter(found.errors.items()))
        sequence = int(records.sequences[found.records[row]])
        what = "does not fit .schema()" if self._cast is not None else "cannot be read"
        text = f"the message with sequence {sequence} of stream {self._stream!r} {what}: {why}"
        if self._columns.mode == "failfast":
            raise CorruptPack(f"{text}{_WAYS_OUT if self._cast is not None else _WAY_OUT}")
        more = f", and {len(found.errors) - 1:,} more" if len(found.errors) > 1 else ""
        log.warning("mamasub: %s%s (mode=%s)", text, more, self._columns.mode.upper())


def _faults_of_rows(records: Records, found: Unpacked) -> dict[int, str]:
    """Faults by row: a record whose headers are unreadable is one row."""
    return {
        row: why for record, why in records.faults.items() for row in np.flatnonzero(found.records == record).tolist()
    }


_WAY_OUT = ". With failOnCorrupt=false it is a row with the raw bytes and pack_error"
_WAYS_OUT = (
    ". Correct .schema() or topics; or with mode=PERMISSIVE it is a row without values, whose bytes and reason are in "
    "`value` and `pack_error` if .schema() names them, with mode=DROPMALFORMED no row"
)


def _type_name(kind: pa.DataType) -> str:
    try:
        return from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString()
    except PySparkException:
        return str(kind)


def _as_json(columns: pa.RecordBatch) -> pa.RecordBatch:
    """The columns as one of JSON. ValueError: a value has no JSON, or all of it would be too large."""
    try:
        return as_json_column(columns)
    except ValueError as e:
        raise ValueError(f"{e}; name its columns by .schema()") from e


def rows_per_sequence(found: RecordLog, after: int, up_to: int, topics: Sequence[str]) -> float:
    """Estimate from the first headers of the range, at least 1: the next message of the topics may be far away."""
    sampled = size = 0
    until = min(up_to, after + SAMPLE_SEQUENCES)
    for records in found.read(after, until, topics):
        sampled += int(announced_rows(records).sum())
        size += records.payloads.nbytes
        if size > SAMPLE_BYTES:
            until = int(records.sequences[-1])
            break
    return max(1.0, sampled / max(1, until - after))


def rows_per_record(found: RecordLog, after: int, up_to: int, topics: Sequence[str]) -> float:
    """Estimate for records on ``topics`` in this range, from the first few headers; 1 without any."""
    for records in found.read(after, up_to, topics):
        few = records.slice(0, min(len(records), SAMPLE_SEQUENCES))
        return max(1.0, float(announced_rows(few).sum()) / len(few))
    return 1.0
