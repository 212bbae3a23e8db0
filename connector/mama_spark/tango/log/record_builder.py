"""Collects records of a log column by column, and makes one batch of messages of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from mama_spark.message import MessageBatch

from .records import GapNumbers, RecordFrames, RecordHeads, RecordKind, encode

_NO_FRAMES = (b"", b"", b"", b"")


@dataclass(slots=True)
class RecordBuilder:
    """Records in the making.

    :ivar topics: of the log
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
        """Append a record.

        :param received: nanoseconds since the epoch
        :param frames: none, or up to four
        """
        self.topics.append(topic)
        self.kinds.append(kind)
        self.received.append(received)
        self.ctrs.append(ctr)
        self.frames.append(frames if len(frames) == 4 else (*frames, *_NO_FRAMES[len(frames) :]))

    def add_gap(
        self, kind: RecordKind, topic: str, received: int, frames: Sequence[bytes], numbers: GapNumbers
    ) -> None:
        """Append the record of a gap or restart."""
        self.gaps[len(self)] = numbers
        self.add(kind, topic, received, frames)

    def messages(self, ids: Callable[[int], list[str]] | None = None) -> MessageBatch:
        """All records, which are at least one.

        :param ids: makes so many message ids, for brokers that deduplicate
        """
        columns = {name: np.zeros(len(self), np.int64) for name in ("first", "last", "count", "cause")}
        for row, numbers in self.gaps.items():
            for column, number in zip(columns.values(), numbers, strict=True):
                column[row] = number
        heads = RecordHeads(np.array(self.kinds), np.array(self.received), np.array(self.ctrs), **columns)
        frames = RecordFrames(*(list(column) for column in zip(*self.frames, strict=True)))
        made = None if ids is None else pa.array(ids(len(self)), pa.string())
        topics = pa.array(self.topics, pa.string()).dictionary_encode()
        return MessageBatch(topics, encode(heads, frames), ids=made)
