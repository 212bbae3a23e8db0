"""Finds the last record of each topic among records that ascend, for ``mamasub``."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import CurrentRecords, Records, is_among

_IN_MEMORY = 32 << 20  #: bytes above which a file is used


def last_of_each(batches: Iterable[Records], distinct: int = 0) -> Iterator[Records]:
    """The last record of each topic, in order; up to sequence ``distinct``, each topic has one record at most.

    Holds all until the end, many of them in a file. In memory: 8 bytes a record after ``distinct``, 8 bytes a replaced
    record, and the topics that may have several records.
    """
    n, known = 0, array("q")
    with SpooledTemporaryFile(_IN_MEMORY) as file:
        for records in map(_last_in_batch, batches):
            n += 1
            pickle.dump(records, file)
            first = int(np.searchsorted(records.sequences, distinct, "right"))
            known.frombytes(_hashes(records.topics[first:]).tobytes())

        def again() -> Iterator[Records]:
            file.seek(0)
            return (pickle.load(file) for _ in range(n))

        hashes = np.frombuffer(known, np.int64)
        hashes.sort()
        several = np.unique(hashes if distinct else hashes[1:][hashes[1:] == hashes[:-1]])
        del hashes, known
        last, replaced = dict[str, int](), array("q")
        for records in again() if len(several) else ():
            rows = np.flatnonzero(is_among(_hashes(records.topics), several))
            topics = records.topics.take(pa.array(rows)).to_pylist()
            for topic, sequence in zip(topics, records.sequences[rows].tolist(), strict=True):
                if topic in last:
                    replaced.append(last[topic])
                last[topic] = sequence
        gone = np.frombuffer(replaced, np.int64)
        gone.sort()
        for records in again():
            yield records.take(np.flatnonzero(~is_among(records.sequences, gone)))


def _hashes(topics: pa.Array) -> Int64s:
    return np.fromiter(map(hash, topics.cast(pa.string()).to_pylist()), np.int64, len(topics))


def _last_in_batch(records: Records) -> Records:
    codes = records.topics.cast(pa.string()).dictionary_encode().indices.to_numpy()
    rows = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    rows[codes] = np.arange(len(codes))
    rows.sort()
    return records.take(rows)


def current_records(batches: Iterable[Records]) -> CurrentRecords:
    found = [records.sequences for records in last_of_each(batches)]
    return CurrentRecords(np.concatenate([*found, np.zeros(0, np.int64)]))
