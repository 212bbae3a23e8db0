"""Recognises rows of a task whose message id a row before them has, before they are sent.

A broker keeps one message of an id and acknowledges the others as duplicates, which is what a resend wants; of two rows
of one attempt with one id it would drop the second. Recognition is by id, and by stream where each row says its own.
It ends with the attempt: a repeated task is free to send its ids again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_128_digest

from mama_spark.contracts.errors import DoubledId, PublishError
from mama_spark.contracts.message import Int64s, MessageBatch

from .seen_ids import SeenIds

#: Row and reason, ascending by row.
Rejected = list[tuple[int, PublishError]]


class DoubledIdCheck:
    """For the rows of one attempt of one task, in the order in which they come.

    :param reject: doubled rows fail; otherwise they are only counted
    :param folder: for temporary files; None = where they go by default
    :ivar count: doubled rows so far
    :ivar first: id and topic of the first one
    """

    def __init__(self, reject: bool, folder: str | None = None) -> None:
        self._reject, self._seen = reject, SeenIds(folder)
        self.count = 0
        self.first: tuple[str, str] | None = None

    def check(self, batch: MessageBatch, rejected: Rejected) -> tuple[Rejected, Int64s | None]:
        """Look at the next rows.

        :param batch: with ids
        :param rejected: rows that are not sent for other reasons: their ids do not count
        :returns: rejected rows, with doubled ones if they are to fail; doubled rows that are sent, None = none
        :raises Unavailable: no room for what must be remembered
        """
        assert batch.ids is not None
        doubled = self._seen.add(_digests(batch.ids, batch.streams, rejected))
        if rejected:
            sent = np.setdiff1d(np.arange(len(batch)), [row for row, _ in rejected])
            rows: Int64s = sent[doubled]
        else:
            rows = np.flatnonzero(doubled)
        if not len(rows):
            return rejected, None
        self.count += len(rows)
        if self.first is None:
            row = int(rows[0])
            self.first = (batch.ids[row].as_py(), batch.topics[row].as_py())
        if not self._reject:
            return rejected, rows
        error = DoubledId()
        return sorted([*rejected, *((row, error) for row in rows.tolist())], key=lambda one: one[0]), None

    def close(self) -> None:
        """Free memory and files. May be repeated."""
        self._seen.close()


def _digests(ids: pa.Array, streams: pa.DictionaryArray | None, rejected: Rejected) -> npt.NDArray[np.uint8]:
    """A digest for each row that is not rejected, shape (n, 16): the one loop over rows, 100 ns each."""
    if rejected:
        good = pa.array(np.setdiff1d(np.arange(len(ids)), [row for row, _ in rejected]))
        ids, streams = ids.take(good), None if streams is None else streams.take(good)
    keys = ids.cast(pa.binary()).to_pylist()
    if streams is not None:
        heads = [_counted(name.encode()) for name in streams.dictionary.to_pylist()]
        keys = [heads[code] + key for code, key in zip(streams.indices.to_pylist(), keys, strict=True)]
    return np.frombuffer(b"".join(map(xxh3_128_digest, keys)), np.uint8).reshape(len(keys), 16)


def _counted(value: bytes) -> bytes:
    return len(value).to_bytes(4, "little") + value
