"""One durable stream as a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mama_spark.errors import ConfigError, Unavailable
from mama_spark.malamute.client.log_query_client import PendingQuery
from mama_spark.malamute.protocol.log_query import (
    FETCH_OCTETS,
    FETCH_ROWS,
    LOOK,
    LogQuery,
    LogQueryAnswer,
    Op,
    Selection,
    parse_numbers,
    parse_texts,
)
from mama_spark.message import MessageBatch
from mama_spark.record_log import Bounds, Records

from . import records as rc
from .append import append
from .selection import selection_of
from .settings import MAX_NAME

if TYPE_CHECKING:
    from .logs import MalamuteLogs

#: Fetches that are asked for at a time: one is made while another travels and a third is taken apart.
AHEAD = 3
_LARGEST = 2**63 - 1


class MalamuteLog:
    """See :class:`~mama_spark.record_log.RecordLog`.

    :raises ConfigError: there is no such stream, or it is not stored
    """

    def __init__(self, bridge: MalamuteLogs, name: str) -> None:
        self._bridge, self._name, self._stream = bridge, name, name.encode()
        if len(self._stream) > MAX_NAME or 0 in self._stream:
            raise ConfigError(f"there is no stream {name!r}: a name has at most {MAX_NAME} octets, and no NUL")
        answer = self._bounds()
        self._identity = answer.identity
        self._limits = parse_texts(parse_numbers(answer.body, 2)[1])

    def __repr__(self) -> str:
        return f"<MalamuteLog {self._name}>"

    @property
    def name(self) -> str:
        return self._name

    def _bounds(self) -> LogQueryAnswer:
        return self._bridge.ask(LogQuery(Op.BOUNDS, 0, self._stream))

    def _ask(self, op: Op, *numbers: int) -> bytes:
        """The body of an answer of this very stream."""
        text = self._identity if op is Op.TRIM else b""
        return self._same(self._bridge.ask(LogQuery(op, 0, self._stream, numbers, text))).body

    def _same(self, answer: LogQueryAnswer) -> LogQueryAnswer:
        if answer.identity != self._identity:
            raise ConfigError(f"stream {self._name!r} was deleted and made again while it was read")
        return answer

    def bounds(self) -> Bounds:
        """See :class:`~mama_spark.record_log.RecordLog`."""
        answer = self._bounds()
        (first, last), _ = parse_numbers(answer.body, 2)
        return Bounds(first, last, answer.identity.decode("utf-8", "replace"))

    def at(self, time: int) -> int:
        """See :class:`~mama_spark.record_log.RecordLog`."""
        return parse_numbers(self._ask(Op.AT, max(-_LARGEST, min(time, _LARGEST))), 1)[0][0]

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """See :class:`~mama_spark.record_log.RecordLog`."""
        found: list[tuple[int, int]] = []
        after, up_to = max(0, after), min(up_to, _LARGEST)
        while after < up_to:
            (reached,), rest = parse_numbers(self._ask(Op.MISSING, after, up_to), 1)
            edges, _ = parse_numbers(rest, len(rest) // 8)
            for low, high in zip(edges[::2], edges[1::2], strict=True):
                if found and found[-1][1] + 1 == low:
                    found[-1] = (found[-1][0], high)
                else:
                    found.append((low, high))
            if reached <= after:
                break
            after = reached
        return found

    def trim(self, before: int) -> None:
        """See :class:`~mama_spark.record_log.RecordLog`."""
        before = min(before, self.bounds().last + 1)
        first = 0
        while first < before:
            now = parse_numbers(self._ask(Op.TRIM, before), 1)[0][0]
            if now == first:
                return
            first = now

    def append(self, batch: MessageBatch) -> int:
        """See :class:`~mama_spark.record_log.RecordLog`."""
        last = append(self._bridge.settings, self._name, batch, self._bridge.timeout)
        return self.bounds().last if last is None else last

    def warnings(self) -> list[str]:
        """See :class:`~mama_spark.record_log.RecordLog`."""
        return [f"stream {self._name!r} removes records {text.decode('utf-8', 'replace')}" for text in self._limits]

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        """There is nobody who would look at it."""

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """See :class:`~mama_spark.record_log.RecordLog`. A few megabytes are fetched ahead, and no more: a fetch is the
        credit."""
        selection, texts = selection_of(topics, self._bridge.pattern)
        return self._read(_ReadSession(max(0, after), min(up_to, _LARGEST), selection, texts))

    def _read(self, course: _ReadSession) -> Iterator[Records]:
        bridge = self._bridge
        until = time.monotonic() + bridge.timeout
        while not course.over:
            try:
                for question in course.questions(self._stream):
                    course.sent(bridge.send(question, until))
                part = course.parts[0]
                answer = self._same(bridge.wait(part.asked))
            except Unavailable as e:
                bridge.reconnected(until, e)
                course.restart()
                continue
            course.take(answer)
            until = time.monotonic() + bridge.timeout
            if part.asked.records:
                yield rc.block(part.asked.records[0])
                until = time.monotonic() + bridge.timeout  # the reader took its time


@dataclass(slots=True)
class _Part:
    """``after < sequence <= up_to``, asked for."""

    after: int
    up_to: int
    asked: PendingQuery


class _ReadSession:
    """What is to be asked next of a range, so that answers are full and in order. Decides; asks nothing itself.

    An answer is bounded in octets, so a part may come back unfinished; what is left of it is asked for then, and goes
    in front of the parts that were asked for meanwhile.
    """

    def __init__(self, after: int, up_to: int, selection: Selection, texts: tuple[bytes, ...]) -> None:
        self.parts: deque[_Part] = deque()
        self._done, self._end = after, up_to  # all up to ``done`` is read
        self._next = after
        self._selection, self._texts = selection, texts
        self._known = False  # where the log ends
        self._width = FETCH_ROWS
        self._left: tuple[int, int] | None = None
        self._asking: list[tuple[int, int]] = []

    @property
    def over(self) -> bool:
        return self._done >= self._end

    def questions(self, stream: bytes) -> Iterator[LogQuery]:
        """To be asked now; tell each by :meth:`sent` before the next."""
        while True:
            if self._left is not None:
                low, high = self._left
            elif self._next < self._end and len(self.parts) < (AHEAD if self._known else 1):
                low, high = self._next, min(self._next + self._width, self._end)
            else:
                return
            self._asking = [(low, high)]
            numbers = (low, high, FETCH_ROWS, FETCH_OCTETS)
            yield LogQuery(Op.BLOCK, 0, stream, numbers, b"", self._selection, self._texts)

    def sent(self, asked: PendingQuery) -> None:
        part = _Part(*self._asking.pop(), asked)
        if self._left is not None:
            self._left = None
            self.parts.appendleft(part)
        else:
            self.parts.append(part)
            self._next = part.up_to

    def take(self, answer: LogQueryAnswer) -> None:
        """The answer to the first part."""
        part = self.parts.popleft()
        (reached, last), _ = parse_numbers(answer.body, 2)
        if not self._known:
            self._known, self._end = True, min(self._end, last)
        whole = reached >= min(part.up_to, self._end)
        self._done = max(self._done, min(part.up_to, self._end) if whole else reached)
        looked = max(1, reached - part.after)
        if whole:
            most = FETCH_ROWS if self._selection is Selection.ALL else LOOK
            self._width = min(most, max(self._width, 2 * looked))
        else:
            self._width = max(1, looked * 7 // 8)
            self._left = (reached, part.up_to)

    def restart(self) -> None:
        """Nothing that was asked for will come."""
        self.parts.clear()
        self._left, self._next = None, self._done
