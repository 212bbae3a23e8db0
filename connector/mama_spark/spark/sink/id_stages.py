"""The stages of ids: the one that marks rows whose id came before, and the one that gives messages theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.publishing.ids.doubled_ids import DoubledIdCheck
from mama_spark.publishing.ids.ids import Digests, IdMaker, digest

from .job import OutcomeCounts
from .stages import SinkBatch, Stage

#: Makes the numbers of ids of messages of these topics and contents from how many equal ones came before each.
Renumber = Callable[[pa.DictionaryArray, Digests, Int64s], Int64s]


class MarkDoubledIds(Stage):
    """For rows that bring ids.

    :param counts: gets the number of rows that were found, and the first of them
    """

    def __init__(self, check: DoubledIdCheck, counts: OutcomeCounts) -> None:
        self._check, self._counts = check, counts

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        rejected, doubled = self._check.check(batch.messages, batch.rejected)
        self._counts.doubled_ids, self._counts.first_doubled_id = self._check.count, self._check.first
        yield replace(batch, rejected=rejected, doubled=doubled)


class GiveIds(Stage):
    """Ids for messages that have none.

    :param renumber: for ids that no stored message has; None = the numbers stay
    """

    def __init__(self, ids: IdMaker, renumber: Renumber | None = None) -> None:
        self._ids, self._renumber = ids, renumber

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        known, n = batch.known_ids, len(batch)
        if batch.messages.ids is not None:
            yield batch
        elif known is None:
            yield batch.with_ids(self._made(batch.messages, batch.digests))
        else:
            new: Int64s = np.flatnonzero(known.is_null().to_numpy(zero_copy_only=False))
            made = self._made(batch.messages.take(new), None if batch.digests is None else batch.digests[new])
            place = np.arange(n)
            place[new] = n + np.arange(len(new))
            yield batch.with_ids(pa.concat_arrays([known, made]).take(pa.array(place)))

    def _made(self, messages: MessageBatch, digests: Digests | None) -> pa.Array:
        renumber = self._renumber
        if renumber is None:
            return self._ids.ids(messages)
        known = digest(messages) if digests is None else digests
        return self._ids.ids(messages, known, lambda numbers: renumber(messages.topics, known, numbers))


class TakeIdsAway(Stage):
    """For messages that the broker shall not deduplicate."""

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        yield replace(batch.with_ids(None), unsent_ids=batch.messages.ids)
