"""Recognises doubled message ids of a task before its rows are sent.

A broker keeps one message of an id and acknowledges the others as duplicates, which is what a resend wants; of two rows
of one attempt with one id it would drop the second. Recognition is by id, and by stream where each row says its own. It
ends with the attempt: a repeated task is free to send its ids again.

Up to :data:`MOST_IDS` ids are remembered, by their XXH3-128 digests. A row that doubles a later id is sent, and the
broker acknowledges it as a duplicate.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_128_digest

from mama_spark.contracts.errors import DoubledId, PublishError
from mama_spark.contracts.message import Bools, Int64s, MessageBatch

from .ids import counted
from .key_table import KeyTable

logger = logging.getLogger("mama_spark")

MOST_IDS = 1 << 21  #: in 100 MB at most
#: Row and reason, ascending by row.
Rejected = list[tuple[int, PublishError]]


class DoubledIdCheck:
    """The check of the rows of one attempt of one task, in the order in which they come.

    :param reject: doubled rows fail; otherwise they are only counted
    :ivar count: doubled rows so far; ``first``: id and topic of the first one
    """

    def __init__(self, reject: bool, most: int = MOST_IDS) -> None:
        self._reject, self._most, self._seen = reject, most, KeyTable(2, 2 * most, 0.5, first=1 << 12)
        self._rows = 0
        self.count = 0
        self.first: tuple[str, str] | None = None

    def check(self, batch: MessageBatch, rejected: Rejected) -> tuple[Rejected, Int64s | None]:
        """Check the next rows, which have ids; ids of ``rejected`` rows, which are not sent, do not count.

        :returns: rejected rows, with doubled ones if these fail; doubled rows that are sent, None = none
        """
        assert batch.ids is not None
        doubled = self._came_before(_digests(batch.ids, batch.streams, rejected).view(np.uint64))
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

    def _came_before(self, keys: npt.NDArray[np.uint64]) -> Bools:
        """True for ids, shape (n, 2), of an earlier row, which gave the id its number."""
        mine: Int64s = np.arange(self._rows + len(keys), self._rows, -1)  # backwards: of equal ones the last one counts
        self._rows += len(keys)
        was_full = self._seen.full
        slots = self._seen.find((keys[::-1, 0].copy(), keys[::-1, 1].copy()), mine)
        if self._seen.full and not was_full:
            logger.warning(
                "doubled ids are looked for among the first %s ids of a task: if a later row has the id of one behind "
                "them, the broker drops it and acknowledges it as a `duplicate`; more partitions compare all rows",
                f"{self._most:,}",
            )
        known: Bools = (slots >= 0) & (self._seen.numbers[slots] != mine)
        return known[::-1]


def _digests(ids: pa.Array, streams: pa.DictionaryArray | None, rejected: Rejected) -> npt.NDArray[np.uint8]:
    """A digest for each row that is not rejected, shape (n, 16): the one loop over rows, 100 ns each."""
    if rejected:
        good = pa.array(np.setdiff1d(np.arange(len(ids)), [row for row, _ in rejected]))
        ids, streams = ids.take(good), None if streams is None else streams.take(good)
    keys = ids.cast(pa.binary()).to_pylist()
    if streams is not None:
        heads = [counted(name.encode()) for name in streams.dictionary.to_pylist()]
        keys = [heads[code] + key for code, key in zip(streams.indices.to_pylist(), keys, strict=True)]
    return np.frombuffer(b"".join(map(xxh3_128_digest, keys)), np.uint8).reshape(len(keys), 16)
