"""The stages that the rows of a partition pass one after another, and how a batch passes them. Pure.

::

    rows of Spark → encoding/     one message a row: topic, headers, payload; bad rows are marked
                  → marks         so are rows that no pack can carry, and rows whose id came before
                  → match         with exactlyOnce: recognises rows that are stored already, by the digest of each
                  → packs         with packs: packs of what is left
                  → last_form     ids of messages; packs compressed, and with the headers that a repetition needs
                  → publisher     publishing/: window, sends, acknowledgements
                  → outcome_recorder: flight log, dead letters, counts

No stage knows those around it: a batch of columns goes in, batches of columns come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mama_spark.contracts.errors import PublishError
from mama_spark.contracts.message import HEADERS_TYPE, Int64s, MessageBatch
from mama_spark.packing.codec import Codec
from mama_spark.packing.packer import Packed, Rows
from mama_spark.publishing.ids.ids import Digests
from mama_spark.publishing.window.flight_batch import StoredFlights

#: Flight and reason, ascending by flight, each once.
Rejected = list[tuple[int, PublishError]]


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """Rows of the partition on their way. An element of a column is a flight: a row or, behind the packs, a pack.

    :ivar messages: messages with placeholders for what is rejected, and without ids that are still to be made
    :ivar rejected: flights that cannot be sent, with the reason
    :ivar numbers: number of each flight's first row in the partition
    :ivar parts: parts of the topics of rows that are to be packed, by the name of their header
    :ivar typed: of rows that are to be packed: columns that keep their types; the payloads of ``messages`` are empty
    :ivar doubled: flights that are sent although a row before them has their id, or that of a row in them; None = none
    :ivar stored: flights that are stored already, and are not sent; ``known_ids``: of these, null for others
    :ivar digests: digests of the content of each row, shape (n, 16); None = not asked yet
    :ivar unsent_ids: given by the user, where messages are sent without ids; None = none
    :ivar packed: the packs; None = a flight is a row
    :ivar sends: number of earlier sends of the rows of each pack, in larger ones; None = none
    """

    messages: MessageBatch
    rejected: Rejected
    numbers: Int64s
    extra: pa.RecordBatch | None = None
    parts: pa.RecordBatch | None = None
    typed: pa.RecordBatch | None = None
    doubled: Int64s | None = None
    stored: Sequence[StoredFlights] = ()
    known_ids: pa.Array | None = None
    digests: Digests | None = None
    unsent_ids: pa.Array | None = None
    packed: Packed | None = None
    sends: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def rows(self) -> Int64s | None:
        """Rows of each flight; None = one."""
        return None if self.packed is None else self.packed.rows

    def rows_to_pack(self, codec: Codec) -> Rows:
        messages, columns = self.messages, self.typed
        if columns is None:
            found = {"value": messages.payloads, "id": messages.ids, "headers": messages.headers}
            names = codec.names
            if found["headers"] is None and "headers" in names:
                found["headers"] = pa.nulls(len(self), HEADERS_TYPE)
            columns = pa.RecordBatch.from_arrays([found[name] for name in names], names)
        return Rows(messages.topics, columns, self.numbers, messages.streams, self.parts, self.extra)

    def with_ids(self, ids: pa.Array | None) -> SinkBatch:
        return replace(self, messages=replace(self.messages, ids=ids))

    @property
    def good(self) -> Int64s:
        return np.delete(np.arange(len(self)), [flight for flight, _ in self.rejected])


class Stage:
    """One step of the rows of a partition, on the thread of the task."""

    def __call__(self, batch: SinkBatch) -> Iterable[SinkBatch]:
        """The batches that one batch becomes; iterate to the end."""
        raise NotImplementedError

    def finish(self) -> Iterable[SinkBatch]:
        """The batches that are left when no more come."""
        return ()

    def returned(self) -> Iterable[SinkBatch]:
        """Batches that the middleware refused, to be sent in another form."""
        return ()


def through(stages: Sequence[Stage], batch: SinkBatch) -> Iterator[SinkBatch]:
    if not stages:
        yield batch
        return
    for one in stages[0](batch):
        yield from through(stages[1:], one)


def finished(stages: Sequence[Stage]) -> Iterator[SinkBatch]:
    for place, stage in enumerate(stages, 1):
        for one in stage.finish():
            yield from through(stages[place:], one)


def returned(stages: Sequence[Stage]) -> Iterator[SinkBatch]:
    for place, stage in enumerate(stages, 1):
        for one in stage.returned():
            yield from through(stages[place:], one)
