"""The last record of each topic in ``mamasub``, among records that ascend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from tempfile import SpooledTemporaryFile

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import HEADERS_TYPE, Int64s
from mama_spark.contracts.record_log import CurrentRecords, Records, is_among

_HELD = pa.schema(
    {"sequence": pa.int64(), "time": pa.int64(), "topic": pa.string(), "payload": pa.binary(), "headers": HEADERS_TYPE}
)
_IN_MEMORY = 32 << 20  #: bytes that are not in a file


def last_of_each(batches: Iterable[Records]) -> Iterator[Records]:
    """The last record of each topic, in order. All are held until the last one has come, in a file if they are many; in
    memory stay 16 bytes of each, and the topics that have several."""
    hashes, faults = list[Int64s](), list[Mapping[int, str]]()
    with SpooledTemporaryFile(_IN_MEMORY) as file:
        with pa.ipc.new_stream(file, _HELD) as held:
            for records in map(_last_in_batch, batches):
                topics, n = records.topics.cast(pa.string()), len(records)
                headers = pa.nulls(n, HEADERS_TYPE) if records.headers is None else records.headers
                columns = [records.sequences, records.times, topics, records.payloads.cast(pa.binary()), headers]
                held.write_batch(pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=_HELD))
                hashes.append(np.fromiter(map(hash, topics.to_pylist()), np.int64, n))
                faults.append(records.faults)

        def again() -> Iterator[tuple[pa.RecordBatch, Int64s, Mapping[int, str]]]:
            file.seek(0)
            return zip(pa.ipc.open_stream(file), hashes, faults, strict=True)

        known = np.sort(np.concatenate([*hashes, np.zeros(0, np.int64)]))
        several, last, replaced = np.unique(known[1:][known[1:] == known[:-1]]), dict[str, int](), list[int]()
        for batch, codes, _ in again() if len(several) else ():
            rows = pa.array(np.flatnonzero(is_among(codes, several)))
            for topic, sequence in zip(
                *(batch[name].take(rows).to_pylist() for name in ("topic", "sequence")), strict=True
            ):
                replaced += [last[topic]] if topic in last else []
                last[topic] = sequence
        gone = np.sort(np.array(replaced, np.int64))
        for batch, _, faulty in again():
            numbers, times = batch["sequence"].to_numpy(), batch["time"].to_numpy()
            headers = batch["headers"] if batch["headers"].null_count < len(batch) else None
            records = Records(numbers, times, batch["topic"], batch["payload"], headers, faulty)
            yield records.take(np.flatnonzero(~is_among(numbers, gone)))


def _last_in_batch(records: Records) -> Records:
    codes = records.topics.cast(pa.string()).dictionary_encode().indices.to_numpy()
    rows = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    rows[codes] = np.arange(len(codes))
    rows.sort()
    return records.take(rows)


def current_records(batches: Iterable[Records]) -> CurrentRecords:
    """Which are the last of their topics."""
    found = [records.sequences for records in last_of_each(batches)]
    return CurrentRecords(np.concatenate([*found, np.zeros(0, np.int64)]))
