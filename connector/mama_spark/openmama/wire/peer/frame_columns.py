"""Received frames as columns, for those that only store them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mama_spark.contracts.message import Int64s


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """``n`` frames.

    :ivar raws: their octets as they came
    :ivar topics: distinct ones; ``codes``: which of them each frame has, shape (n,)
    :ivar payload_at: where the payload begins in each, shape (n,)
    :ivar inboxes: frame -> number of the request that it replies to
    """

    raws: list[bytes] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    codes: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    payload_at: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    inboxes: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.raws)

    @classmethod
    def of_one(cls, raw: bytes, topic: str, payload_at: int, inboxes: dict[int, int]) -> FrameColumns:
        return cls([raw], [topic], np.zeros(1, np.int64), np.array([payload_at], np.int64), inboxes)

    @classmethod
    def joined(cls, parts: Sequence[FrameColumns]) -> FrameColumns:
        """One behind the other."""
        if len(parts) < 2:
            return parts[0] if parts else cls()
        known: dict[str, int] = {}
        raws, codes, inboxes = list[bytes](), list[Int64s](), dict[int, int]()
        for part in parts:
            place = np.array([known.setdefault(topic, len(known)) for topic in part.topics], np.int64)
            codes.append(place[part.codes])
            inboxes.update({len(raws) + row: number for row, number in part.inboxes.items()})
            raws += part.raws
        return cls(raws, list(known), np.concatenate(codes), np.concatenate([p.payload_at for p in parts]), inboxes)
