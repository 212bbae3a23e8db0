"""Finds out which rows of a partition are stored already, for option ``exactlyOnce``, and gives the others their ids.

Everything here is columns, and costs nothing but the markers as long as the partition is published for the first time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mama_spark.contracts.batch_ledger import BatchLedger
from mama_spark.contracts.message import Bools, Int64s, MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.options import SinkOptions
from mama_spark.packing import Codec, Packed, packed
from mama_spark.packing.pack_rows import PackRows
from mama_spark.publishing.exactly_once.batch_session import BatchSession, Rules
from mama_spark.publishing.exactly_once.found_rows import keys_of
from mama_spark.publishing.exactly_once.protocol import Attempt
from mama_spark.publishing.exactly_once.stored_rows import IdReader, keys_of_ids
from mama_spark.publishing.ids.ids import IdMaker, digest, texts
from mama_spark.publishing.window.flight_batch import StoredFlights

from .packed_messages import PublishBatch, flights_of


@dataclass(frozen=True, slots=True)
class BatchWithStored:
    """:ivar stored: rows that need not be sent"""

    publish: PublishBatch
    stored: Sequence[StoredFlights] = ()


def attempt_of(ids: IdMaker, write: str, batch: int, run: str, partition: int, form: str) -> Attempt:
    """This attempt, under a name of its own."""
    return Attempt(write, batch, run, partition, f"{partition}-{uuid.uuid4().hex[:16]}", ids.prefix, form)


def form_of(o: SinkOptions, *, own_ids: bool, codec: Codec | None) -> str:
    """How rows become messages, for people and for comparison."""
    if codec is None:
        return "messages with ids of their own" if own_ids else "one message a row"
    return f"pack={o.pack} of {codec.description}"


class RepeatedRows:
    """For the rows of one attempt.

    :param ids: makes default ids
    :param own_ids: the rows bring ids, which are those of the messages
    :param codec: of packs; None = rows are not packed
    """

    def __init__(
        self, o: SinkOptions, ledger: BatchLedger, me: Attempt, ids: IdMaker, *, own_ids: bool, codec: Codec | None
    ) -> None:
        self._me, self._ids, self._own_ids, self._codec = me, ids, own_ids, codec
        self._packs = None if codec is None else PackRows(codec)
        reader = IdReader(not own_ids, None if self._packs is None else self._digests_of_records)
        self.session = BatchSession(
            ledger, me,
            Rules(o.wait_timeout, o.on_retention == "publish", o.on_unavailable == "wait", reader),
        )  # fmt: skip

    def _digests_of_records(self, records: Records) -> tuple[npt.NDArray[np.uint8], Int64s]:
        assert self._packs is not None
        contents, counts = self._packs.contents_of_records(records)
        return digest(contents), counts

    def with_ids(self, one: PublishBatch) -> Iterator[BatchWithStored]:
        """The same rows with ids, those apart that are stored already. May wait for the middleware.

        :raises ConfigError, Unavailable: see :meth:`.BatchSession.begin`
        """
        batch = one.batch
        self.session.begin(batch.topics.dictionary)
        if batch.ids is not None and not self._own_ids:
            yield BatchWithStored(one)  # rows of packs that are all rejected
        elif not self.session.repeats:
            yield BatchWithStored(one if self._own_ids else self._with(one, self._ids.ids(batch)))
        elif one.context.packed is not None:
            yield from self._packed(one, one.context.packed)
        elif self._own_ids:
            yield BatchWithStored(one, self._by_own_id(one))
        else:
            yield self._rows(one)

    def letters(self, letters: MessageBatch) -> list[StoredFlights]:
        """Dead letters that are stored already."""
        self.session.begin(letters.topics.dictionary)
        if not self.session.repeats or letters.ids is None:
            return []
        return self.session.letters(letters)

    @staticmethod
    def _with(one: PublishBatch, ids: pa.Array) -> PublishBatch:
        return replace(one, batch=replace(one.batch, ids=ids))

    def _by_own_id(self, one: PublishBatch) -> list[StoredFlights]:
        good = _good(one)
        assert one.batch.ids is not None
        keys = keys_of_ids(one.batch.ids.take(good).cast(pa.binary()).to_pylist())
        return _at(good, self.session.serve(one.batch.topics.take(pa.array(good)), keys)[1])

    def _rows(self, one: PublishBatch) -> BatchWithStored:
        batch, good = one.batch, _good(one)
        digests = digest(batch)
        found, parts = self.session.serve(batch.topics.take(pa.array(good)), keys_of(digests[good]))
        served = good[found.rows]
        rest = np.setdiff1d(np.arange(len(batch)), served)
        known = texts(self._me.prefix, found.partition[found.rows], digests[served], found.number[found.rows])
        ids = pa.concat_arrays([self._new_ids(batch.take(rest), digests[rest]), known])
        place = np.argsort(np.concatenate([rest, served]), kind="stable")
        return BatchWithStored(self._with(one, ids.take(pa.array(place))), _at(good, parts))

    def _new_ids(self, batch: MessageBatch, digests: npt.NDArray[np.uint8]) -> pa.Array:
        keys = keys_of(digests)
        return self._ids.ids(batch, digests, lambda n: self.session.renumber(batch.topics, keys, n))

    # --- packs -----------------------------------------------------------------------------------------------------

    def _packed(self, one: PublishBatch, packs: Packed) -> Iterator[BatchWithStored]:
        """Packs of rows that are not stored stay as they are; the others are taken apart."""
        assert self._codec is not None
        assert self._packs is not None
        rows, digests = self._packs.rows_of(packs), digest(self._packs.contents_of(packs))
        found, parts = self.session.serve(rows.topics, keys_of(digests))
        if not found.rows.any():
            yield BatchWithStored(self._with(one, self._pack_ids(one.batch)))
            return
        pack_of = np.repeat(np.arange(len(packs)), packs.rows)
        left = np.flatnonzero(~found.rows)
        if len(left):
            starts = np.concatenate(([0], np.flatnonzero(np.diff(pack_of[left])) + 1, [len(left)]))
            rest = flights_of(packed(self._codec, rows.take(left), starts.astype(np.int64)))
            yield BatchWithStored(self._with(rest, self._pack_ids(rest.batch)))
        served = np.flatnonzero(found.rows)
        single = flights_of(packed(self._codec, rows.take(served), np.arange(len(served) + 1)))
        numbers = np.arange(len(served)) + self.session.found - len(served)
        ids = texts(self._me.prefix, found.partition[served], digests[served], numbers)
        place = np.full(len(digests), -1, np.int64)
        place[served] = np.arange(len(served))
        at = [replace(some, rows=place[some.rows]) for some in parts]
        yield BatchWithStored(self._with(single, ids), at)

    def _pack_ids(self, batch: MessageBatch) -> pa.Array:
        digests = digest(batch)
        return self._ids.ids(batch, digests, lambda n: self.session.renumber_packs(batch.topics, digests, n))


def _good(one: PublishBatch) -> Int64s:
    """Rows that are to be sent."""
    good: Bools = np.ones(len(one.batch), np.bool_)
    good[[row for row, _ in one.rejected]] = False
    rows: Int64s = np.flatnonzero(good)
    return rows


def _at(rows: Int64s, parts: Sequence[StoredFlights]) -> list[StoredFlights]:
    """The same for rows that are counted otherwise."""
    return [replace(some, rows=rows[some.rows]) for some in parts]
