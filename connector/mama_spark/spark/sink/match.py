"""The stage that recognises rows that are stored already, for option ``exactlyOnce``.

It costs nothing but the markers as long as the partition is published for the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import Records
from mama_spark.packing.codec import Codec
from mama_spark.packing.row_contents import contents_of_records, contents_of_rows
from mama_spark.publishing.exactly_once.found_rows import Found
from mama_spark.publishing.exactly_once.matching import Unpack, digests_of_ids
from mama_spark.publishing.exactly_once.session import BatchSession
from mama_spark.publishing.ids.ids import Digests, digest, texts

from .stages import SinkBatch, Stage


class MatchStored(Stage):
    """The stage that matches the rows of one attempt. Each stored row settles one row, under the stored id. ``codec``
    None: rows are not packed."""

    def __init__(self, session: BatchSession, prefix: str, codec: Codec | None) -> None:
        self._session, self._prefix, self._codec = session, prefix, codec
        self._matched = 0

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        """May wait for the middleware.

        :raises ConfigError, Unavailable: see :meth:`.BatchSession.begin`
        """
        self._session.begin(batch.messages.topics.dictionary)
        if not self._session.repeats:
            yield batch
            return
        good = batch.good
        digests = self._digests(batch)
        found, parts = self._session.match_stored_rows(batch.messages.topics.take(pa.array(good)), digests[good])
        stored = [replace(some, rows=good[some.rows]) for some in parts]
        own_ids = self._codec is None and batch.messages.ids is not None
        known = None if own_ids or not stored else self._known_ids(found, good, digests)
        yield replace(batch, stored=stored, known_ids=known, digests=digests)

    def _digests(self, batch: SinkBatch) -> Digests:
        messages, codec = batch.messages, self._codec
        if codec is not None:
            return digest(contents_of_rows(codec, batch.rows_to_pack(codec)))
        if messages.ids is not None:  # the user's, which stand for the rows
            return digests_of_ids(messages.ids.cast(pa.binary()).to_pylist())
        return digest(messages)

    def _known_ids(self, found: Found, good: Int64s, digests: Digests) -> pa.Array:
        """A row of a pack has no id at the broker: its number tells it apart in the flight log."""
        there = np.flatnonzero(found.rows)
        numbers = found.number[there]
        if self._codec is not None:
            numbers = self._matched + np.arange(len(there))
        self._matched += len(there)
        ids = texts(self._prefix, found.partition[there], digests[good[there]], numbers)
        place = np.full(len(digests), -1, np.int64)
        place[good[there]] = np.arange(len(there))
        return ids.take(pa.array(place, mask=place < 0))


def unpack_digests(codec: Codec) -> Unpack:
    def unpack(records: Records) -> tuple[Digests, Int64s]:
        contents, counts = contents_of_records(codec, records)
        return digest(contents), counts

    return unpack
