"""Which sends of a bridge may still be stored: over the present connection, and over those that it had before.

On the present one, a message that no stream stores is sent behind them, and its answer by the leader of the stream says
that all before it are there, refused or lost. What was sent over another one is certain when its server has said so
(:mod:`..jetstream.server_probe`), which a thread asks. Both only when somebody wants to know.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mama_spark.contracts.batch_ledger import SETTLE
from mama_spark.contracts.bridge import OnTheWay
from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import Int64s

from ..connection.socket_connection import SocketConnection, is_nobody
from ..jetstream.server_probe import SentTo, why_unfenced
from ..jetstream.streams import NOBODY
from ..protocol.parser import Frame
from ..settings import NatsSettings

logger = logging.getLogger("mama_spark")

_ASK_AGAIN = 2.0  #: seconds after which an answer is taken for lost, or a leader may be there
_PROBE_AGAIN = 0.5  #: seconds between two questions to a server
_WARN_AGAIN = 30.0  #: seconds between two warnings about it


@dataclass(slots=True)
class _Left:
    """Sends ``[first, end)`` over a connection that is left.

    :ivar certain: none of them will be stored any more
    """

    first: int
    end: int
    server: SentTo
    at: float
    why: str = ""
    certain: bool = False
    thread: threading.Thread | None = None


@dataclass(slots=True)
class _Fence:
    """Behind the sends before ``end``: asked of each stream twice, the second time when they had time to settle.

    :ivar waiting: topics, one of each stream that has not answered; ``numbers``: of the requests
    """

    end: int
    since: float
    waiting: set[str] = field(default_factory=set)
    numbers: list[int] = field(default_factory=list)
    asked_at: float = 0.0
    again_at: float | None = None  # the first answers are there


class Fences:
    """For the thread of the bridge, but where it says another thing.

    :param topics: one of each stream that is published to
    :ivar sent: the token behind the last one that was sent
    """

    def __init__(
        self,
        settings: NatsSettings,
        connection: SocketConnection,
        topics: Callable[[], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._connection, self._topics, self._clock = settings, connection, topics, clock
        self.sent = self._certain = 0  # those before it are certain, or in _left
        self._left: list[_Left] = []
        self._fence: _Fence | None = None
        self._closed = threading.Event()
        self.connected()

    def connected(self) -> None:
        self._server = SentTo.over(self._connection)
        self._name_servers()

    def _name_servers(self) -> None:
        self._left = [left for left in self._left if not left.certain]
        self._names = tuple(
            dict.fromkeys(server.text for server in [*(left.server for left in self._left), self._server])
        )

    def disconnected(self) -> None:
        self._drop_fence()
        if self.sent > self._certain:
            self._left.append(_Left(self._certain, self.sent, self._server, self._clock()))
            self._certain = self.sent

    def close(self) -> None:
        """Nobody asks any more."""
        self._drop_fence()
        self._closed.set()

    def sent_to(self) -> tuple[str, ...]:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        return self._names

    def on_the_way(self, tokens: Int64s) -> OnTheWay | None:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        if any(left.certain for left in self._left):
            self._name_servers()
        rows, since, why = np.zeros(len(tokens), np.bool_), self._clock(), ""
        for left in self._left:
            mine = (tokens >= left.first) & (tokens < left.end)
            if mine.any():
                rows |= mine
                since, why = min(since, left.at), left.why
                if left.thread is None:
                    args = (left, list(self._topics()))
                    left.thread = threading.Thread(target=self._probe, args=args, name="mama-probe", daemon=True)
                    left.thread.start()
        if self._fence is not None:
            self._look(self._fence)
        here = tokens >= self._certain
        if here.any():
            rows |= here
            if self._fence is None:
                self._fence = _Fence(self.sent, self._clock())
                self._ask(self._fence)
            since, why = min(since, self._fence.since), why or f"{self._server} has not answered for what it has"
        return OnTheWay(rows, since, why) if rows.any() else None

    # --- the present connection ------------------------------------------------------------------------------------

    def _ask(self, fence: _Fence) -> None:
        fence.asked_at = self._clock()
        if not fence.waiting:
            fence.waiting.update(self._topics())
        for topic in sorted(fence.waiting):
            with contextlib.suppress(MamaError):  # the connection breaks
                answered = partial(self._answered, fence, topic)
                fence.numbers.append(self._connection.ask(topic, b"", NOBODY, answered))

    def _answered(self, fence: _Fence, topic: str, answer: Frame) -> None:
        if not is_nobody(answer):
            fence.waiting.discard(topic)

    def _look(self, fence: _Fence) -> None:
        now = self._clock()
        if fence.waiting:
            if now >= fence.asked_at + _ASK_AGAIN:
                self._ask(fence)
        elif fence.again_at is None:
            fence.again_at = now + SETTLE
        elif fence.asked_at >= fence.again_at:
            self._certain = max(self._certain, fence.end)
            self._drop_fence()
        elif now >= fence.again_at:
            self._ask(fence)

    def _drop_fence(self) -> None:
        if self._fence is not None:
            for number in self._fence.numbers:
                self._connection.answers.forget(number)
        self._fence = None

    # --- connections that are left: a thread each -------------------------------------------------------------------

    def _probe(self, left: _Left, topics: list[str]) -> None:
        warned = self._clock()
        while not self._closed.is_set():
            try:
                left.why = why_unfenced(self._settings, left.server, topics)
            except MamaError as e:
                left.why = f"{left.server} may still have messages, and cannot be asked: {e}"
            if not left.why:
                left.certain = True
                return
            if self._clock() >= warned + _WARN_AGAIN:
                warned = self._clock()
                logger.warning(
                    "%s; rows that were sent there wait until that is known (option onSilentServer)", left.why
                )
            self._closed.wait(_PROBE_AGAIN)
