"""The in-memory broker as a record log, with gaps where messages were deleted.

``memory://name`` has one log, with the broker's name and all topics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.contracts.record_log import Bounds, MatchRange, RecordLog, RecordLogBridge, Records
from mama_spark.contracts.topics import compile_filters
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from .bridge import MemoryBridge
from .broker import MemoryBroker, MemoryMessage

_ROWS = 4096
_ANSWER_TIMEOUT = 0.001  #: seconds; the broker answers during the send, or never


class MemoryLogs(RecordLogBridge):
    def __init__(self, name: str) -> None:
        self.broker = MemoryBroker.get(name)

    def open(self) -> None:
        if not self.broker.up:
            raise Unavailable(f"memory://{self.broker.name} is down")

    def names(self, topics: Sequence[str]) -> list[str]:
        self.open()
        return [self.broker.name]

    def log(self, name: str) -> MemoryLog:
        self.open()
        if name != self.broker.name:
            raise ConfigError(f"memory://{self.broker.name} has no log {name!r}")
        return MemoryLog(self.broker)

    def close(self) -> None:
        """Does nothing: no connection is open."""


class MemoryLog(RecordLog):
    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    @property
    def name(self) -> str:
        return self._broker.name

    def _messages(self) -> list[MemoryMessage]:
        if not self._broker.up:
            raise Unavailable(f"memory://{self._broker.name} is down")
        if MemoryBroker.get(self._broker.name) is not self._broker:
            raise ConfigError(f"memory://{self._broker.name} is another broker by now")
        return self._broker.messages()

    def bounds(self) -> Bounds:
        messages = self._messages()
        last = self._broker.last()
        newest = messages[-1].time if messages and messages[-1].sequence == last else None
        return Bounds(messages[0].sequence if messages else last + 1, last, self._broker.identity, newest)

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        wanted = compile_filters(topics)
        found = [
            m for m in self._messages() if after < m.sequence <= up_to and (not topics or wanted.fullmatch(m.topic))
        ]
        for start in range(0, len(found), _ROWS):
            yield _records(found[start : start + _ROWS])

    def match_range(self, after: int, up_to: int, topics: Sequence[str], limit: int) -> MatchRange:
        wanted = compile_filters(topics)
        matching = [m.sequence for m in self._messages() if after < m.sequence <= up_to and wanted.fullmatch(m.topic)]
        return MatchRange(up_to, len(matching)) if len(matching) <= limit else MatchRange(matching[limit - 1], limit)

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        low, high = max(0, after), min(up_to, self._broker.last())
        there = [m.sequence for m in self._messages() if low < m.sequence <= high]
        return [(a + 1, b - 1) for a, b in pairwise([low, *there, high + 1]) if b - a > 1]

    def sequence_at(self, time: int) -> int:
        messages = self._messages()
        place = bisect_left(messages, time, key=lambda m: m.time)
        return messages[place].sequence if place < len(messages) else self._broker.last() + 1

    def append(self, batch: MessageBatch) -> int:
        self._messages()
        bridge = MemoryBridge(self._broker.name)
        bridge.open()
        sender = BlockingSender(bridge, WindowConfig(1, 0, _ANSWER_TIMEOUT, resend_uncertain=False))
        last = self._broker.last()
        for row in range(len(batch)):
            last = int(sender.store(batch.slice(row, 1), 1.0).sequence[0])
        return last

    def trim(self, before: int) -> None:
        self._broker.delete(m.sequence for m in self._messages() if m.sequence < before)

    def warnings(self, topics: Sequence[str] = ()) -> list[str]:
        """Empty: only :meth:`trim` removes records."""
        return []

    def require_topics(self, topics: Sequence[str]) -> None:
        """Do nothing: the log takes all."""

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        self._broker.progress[name] = up_to


def _records(messages: list[MemoryMessage]) -> Records:
    headers = [list(m.headers.items()) or None for m in messages]
    return Records(
        np.array([m.sequence for m in messages], np.int64),
        np.array([m.time for m in messages], np.int64),
        pa.array([m.topic for m in messages], pa.string()).dictionary_encode(),
        pa.array([m.payload for m in messages], pa.binary()),
        pa.array(headers, HEADERS_TYPE) if any(headers) else None,
    )
