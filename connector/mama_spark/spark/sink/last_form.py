"""The stages that give messages the form in which they are sent: ids, then compression and the headers of packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.options import SinkOptions
from mama_spark.packing.compression import PackCompressor
from mama_spark.packing.row_contents import with_topic_header
from mama_spark.publishing.ids.ids import Digests, IdMaker, digest

from .stages import SinkBatch, Stage

#: Makes the numbers of ids of messages of these topics and contents from how many equal ones came before each.
Renumber = Callable[[pa.DictionaryArray, Digests, Int64s], Int64s]


class GiveIds(Stage):
    """Ids for messages that have none; ``renumber``: gives numbers that no stored message has; None = they stay."""

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
    """The stage for messages that the broker shall not deduplicate."""

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        yield replace(batch.with_ids(None), unsent_ids=batch.messages.ids)


class FinishPacks(Stage):
    """Packs in the form in which they are sent: compressed, if that is asked for, and with a header of the topic, if a
    repetition will look for them. Ids are made before, so that they do not depend on it."""

    def __init__(self, o: SinkOptions) -> None:
        self._with_topics = o.exactly_once
        self._compressor = None
        if o.pack_compression != "none":
            self._compressor = PackCompressor(o.pack_compression, o.pack_compression_level)

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        if batch.packed is None:
            yield batch
            return
        messages = batch.messages if self._compressor is None else self._compressor.compress(batch.messages)
        messages = with_topic_header(messages) if self._with_topics else messages
        yield replace(batch, messages=messages, packed=replace(batch.packed, batch=messages))
