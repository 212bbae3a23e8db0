"""Selects received messages for a peer: of subscribed topics, and replies to its requests. Pure.

They are single frames, or columns of many for peers that only store them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mama_spark.contracts.message import Int64s
from mama_spark.mama.messages.omnm import BadMessage

from .frames import BridgeFrame, FrameType, Framing, payload_fault
from .subscriptions import OpenInboxes, is_inbox


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """``n`` frames.

    :ivar raws: their bytes as they came
    :ivar topics: distinct ones; ``codes``: which of them each frame has, shape (n,)
    :ivar payload_at: offset of the payload in each, shape (n,)
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


logger = logging.getLogger("mama_spark")

MAX_HEADS = 100_000


class ReceivedFrame(NamedTuple):
    """A message that this peer subscribed to, or a reply.

    :ivar raw: bytes as they came
    :ivar payload_at: offset of the payload in them
    :ivar inbox: number of the request that it replies to
    """

    topic: str
    raw: bytes
    payload_at: int
    framing: Framing
    inbox: int | None = None

    @property
    def frame(self) -> BridgeFrame:
        """The message, decoded at each call: what is only stored needs none."""
        return self.framing.decode(self.raw)


@dataclass(slots=True)
class PeerCounters:
    """Messages since the peer was made: sent ones, and received ones that were not delivered.

    :ivar malformed: no frame of the framing; ``multipart``: of several ZeroMQ frames
    :ivar neighbours: messages of topics that only begin like one that was subscribed to
    :ivar unknown_inbox: replies to requests that are not known or finished
    """

    sent: int = 0
    malformed: int = 0
    multipart: int = 0
    neighbours: int = 0
    unknown_inbox: int = 0


class FrameFilter:
    """Decodes what came, and drops what is not for this peer: ZeroMQ delivers by prefixes."""

    def __init__(self, framing: Framing, inboxes: OpenInboxes, counters: PeerCounters) -> None:
        self._framing, self._inboxes, self._counters = framing, inboxes, counters
        self._head_tail = framing.publish_tail + 1
        self._topics: set[str] = set()
        self._prefixes: tuple[str, ...] = ()
        self._warned: set[str] = set()
        self._heads: dict[bytes, int] = {}  #: how accepted publications begin, with the payload's id -> place in _known
        self._known: list[tuple[str, int]] = []  #: topics, and where their payloads begin

    def add(self, topic: str, *, prefix: bool) -> bool:
        """Take the messages of a topic, or of all that begin so; False: a topic was taken before."""
        self._forget_heads()
        if prefix:
            self._prefixes = (*self._prefixes, topic)
        elif topic in self._topics:
            return False
        else:
            self._topics.add(topic)
        return True

    def remove(self, topic: str) -> bool:
        """Undo :meth:`add` of one topic; False: there is nothing to undo."""
        if topic not in self._topics:
            return False
        self._forget_heads()
        self._topics.discard(topic)
        return True

    def accepted(self, raw: bytes) -> ReceivedFrame | None:
        """The frame of a received message; None if it is not for this peer."""
        place = self._heads.get(raw[: raw.find(0) + self._head_tail])
        if place is not None:
            topic, at = self._known[place]
            return ReceivedFrame(topic, raw, at, self._framing)
        return self._decoded(raw)

    def columns(self, raws: list[bytes]) -> FrameColumns:
        """The accepted messages (:meth:`accepted`) of many, in columns: one lookup each."""
        heads, upto = self._heads, self._head_tail
        found = np.array([heads.get(raw[: raw.find(0) + upto], -1) for raw in raws], np.int64)
        parts, begin, known = list[FrameColumns](), 0, self._known
        for row in [*np.flatnonzero(found < 0).tolist(), len(raws)]:
            if row < len(raws) and known is self._known:  # the head may be that of a message before it
                found[row] = heads.get(raws[row][: raws[row].find(0) + upto], -1)
                if found[row] >= 0:
                    continue
            if row > begin:
                parts.append(_known_columns(raws[begin:row], found[begin:row], known))
            if row < len(raws) and (other := self._decoded(raws[row])) is not None:
                inboxes = {} if other.inbox is None else {0: other.inbox}
                parts.append(FrameColumns.of_one(other.raw, other.topic, other.payload_at, inboxes))
            begin = row + 1
        return FrameColumns.joined(parts)

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._known = []

    def _decoded(self, raw: bytes) -> ReceivedFrame | None:
        counters, framing = self._counters, self._framing
        try:
            frame = framing.decode(raw)
        except BadMessage:
            counters.malformed += 1
            return None
        at = len(raw) - len(frame.payload)
        if frame.payload[:1] != b"O":
            self._foreign(frame)
        if is_inbox(frame.topic):
            number = self._inboxes.request_of(frame.topic)
            if number is None or frame.type is not FrameType.REPLY:
                counters.unknown_inbox += 1
                return None
            return ReceivedFrame(frame.topic, raw, at, framing, number)
        if frame.topic in self._topics or (self._prefixes and frame.topic.startswith(self._prefixes)):
            if frame.type is FrameType.PUBLISH:
                if len(self._heads) >= MAX_HEADS:
                    self._forget_heads()
                if raw[at : at + 1] == b"O" and raw[: at + 1] not in self._heads:
                    self._heads[raw[: at + 1]] = len(self._known)
                    self._known.append((frame.topic, at))
            return ReceivedFrame(frame.topic, raw, at, framing)
        counters.neighbours += 1
        return None

    def _foreign(self, frame: BridgeFrame) -> None:
        fault = payload_fault(frame.payload) or ""
        if fault not in self._warned and len(self._warned) < 16:
            self._warned.add(fault)
            logger.warning("topic %r: %s (said once)", frame.topic, fault)


def _known_columns(raws: list[bytes], places: Int64s, known: list[tuple[str, int]]) -> FrameColumns:
    distinct, codes = np.unique(places, return_inverse=True)
    found = [known[place] for place in distinct.tolist()]
    return FrameColumns(raws, [topic for topic, _ in found], codes, np.array([at for _, at in found], np.int64)[codes])
