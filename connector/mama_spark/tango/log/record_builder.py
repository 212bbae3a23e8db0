"""Builder of log records: collects them in columns, and encodes them as one batch of messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import MessageBatch

from .records import GapNumbers, RecordFrames, RecordHeads, RecordKind, encode

_NO_FRAMES = (b"", b"", b"", b"")


@dataclass(slots=True)
class RecordBuilder:
    """Records that are not encoded yet: one list a column, one element a record.

    :ivar topics: topics in the log
    :ivar kinds: :class:`~mama_spark.tango.log.records.RecordKind` numbers
    :ivar received: nanoseconds since the epoch
    :ivar gaps: row -> numbers of a gap or restart
    """

    topics: list[str] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    ctrs: list[int] = field(default_factory=list)
    frames: list[Sequence[bytes]] = field(default_factory=list)
    gaps: dict[int, GapNumbers] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.topics)

    def add(
        self, kind: RecordKind, topic: str, received: int, frames: Sequence[bytes] = _NO_FRAMES, ctr: int = 0
    ) -> None:
        """Append a record; ``received`` is nanoseconds since the epoch, ``frames`` up to four, ``ctr`` 0 for none."""
        self.topics.append(topic)
        self.kinds.append(kind)
        self.received.append(received)
        self.ctrs.append(ctr)
        self.frames.append(frames if len(frames) == 4 else (*frames, *_NO_FRAMES[len(frames) :]))

    def add_gap(
        self, kind: RecordKind, topic: str, received: int, frames: Sequence[bytes], numbers: GapNumbers
    ) -> None:
        self.gaps[len(self)] = numbers
        self.add(kind, topic, received, frames)

    def messages(self) -> MessageBatch:
        """All records, of which there must be at least one, as messages without ids."""
        columns = {name: np.zeros(len(self), np.int64) for name in ("first", "last", "count", "cause")}
        for row, numbers in self.gaps.items():
            for column, number in zip(columns.values(), numbers, strict=True):
                column[row] = number
        heads = RecordHeads(np.array(self.kinds), np.array(self.received), np.array(self.ctrs), **columns)
        frames = RecordFrames(*(list(column) for column in zip(*self.frames, strict=True)))
        topics = pa.array(self.topics, pa.string()).dictionary_encode()
        return MessageBatch(topics, encode(heads, frames))
