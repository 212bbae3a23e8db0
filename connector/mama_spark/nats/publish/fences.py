"""Tells which sends of a bridge may still be stored: over its present connection, and over earlier ones.

On the present connection, a message that no stream stores follows the sends; the answer of the stream's leader proves
that all sends before it are stored, refused or lost. For an earlier connection, a thread asks its server
(:mod:`..jetstream.server_probe`). Both happen on demand, and for each stream alone, because another one may have no
leader.

Alternatives in nats-server 2.15, with their rates: thousands of messages a second, with one and three replicas. Without
them: 68 and 28.

- ``Nats-Expected-Last-Subject-Sequence`` of a subject that each attempt writes to refuses old messages: 29 and 4. It
  needs a message of ours in the stream; replicated streams take one message at a time.
- The same at the head of atomic batches of 1,000: 25 and 64. It needs ``allow_atomic``, too; one known id refuses all.
- ``Nats-Expected-Last-Sequence`` and ``-Msg-Id`` allow one writer; a wrong ``-Msg-Id`` ends a replicated stream.
- Fast batches refuse old messages after 10 idle seconds, and take no ids in replicated streams.
- A longer duplicate window refuses them for so long, and takes memory for each id.
- A time to live refuses none: it counts from the time when the message is stored.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from mama_spark.contracts.batch_ledger import SETTLE
from mama_spark.contracts.bridge import OnTheWay
from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import Int64s
from mama_spark.publishing.outage_reporter import WarningTimer

from ..connection.socket_connection import SocketConnection
from ..jetstream.server_probe import SentTo, why_unfenced
from ..jetstream.streams import NOBODY
from ..protocol.acks import is_nobody
from ..protocol.parser import Frame
from ..settings import NatsSettings

logger = logging.getLogger("mama_spark")

_ASK_AGAIN = 0.5  #: seconds to the next question: an answer may be lost, or a leader elected
_PROBE_AGAIN = 0.5  #: seconds between two questions to a server


class RowsOfStream(NamedTuple):
    """Rows of some sends to one stream; ``subject``: subject of one of them, as sent."""

    stream: str
    subject: str
    rows: Int64s


@dataclass(slots=True, eq=False)
class _Left:
    """Sends ``[first, end)`` over an earlier connection.

    :ivar asked: a topic of each stream that its server is asked about
    :ivar why: reason, by stream that may still store some
    """

    first: int
    end: int
    server: SentTo
    at: float
    asked: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    @property
    def certain(self) -> bool:
        return bool(self.asked) and not self.why


@dataclass(slots=True)
class _Fence:
    """Question to the leader of one stream behind the sends before ``end``, asked again after time to settle.

    :ivar number: number of the question; ``reply``: subject of its answers
    """

    end: int
    since: float
    asked_at: float = 0.0
    answered: bool = False
    again_at: float | None = None  # the first answer is there
    number: int = 0
    reply: bytes = b""


class Fences:
    """For the bridge's thread, unless noted.

    :param subjects: returns a subject of each stream that is published to
    :ivar sent: token after the last sent one
    """

    def __init__(
        self,
        settings: NatsSettings,
        connection: SocketConnection,
        subjects: Callable[[], Mapping[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._connection, self._subjects, self._clock = settings, connection, subjects, clock
        self.sent = self._begun = 0  # first token over the present connection
        self._left: list[_Left] = []
        self._certain: dict[str, int] = {}  # by stream: sends over the present connection below this token
        self._fences: dict[str, _Fence] = {}  # by stream
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
        self._drop_fences()
        self._certain.clear()
        if self.sent > self._begun:
            self._left.append(_Left(self._begun, self.sent, self._server, self._clock()))
            self._begun = self.sent

    def close(self) -> None:
        self._drop_fences()
        self._closed.set()

    def sent_to(self) -> tuple[str, ...]:
        return self._names

    def on_the_way(self, tokens: Int64s, by_stream: Iterable[RowsOfStream]) -> OnTheWay | None:
        if any(left.certain for left in self._left):
            self._name_servers()
        found, since, why = np.zeros(len(tokens), np.bool_), self._clock(), ""
        for stream, subject, rows in by_stream:
            mine = tokens[rows]
            for left in self._left:
                there = rows[(mine >= left.first) & (mine < left.end)]
                if len(there):
                    if stream not in left.asked:
                        self._ask_server(left, {**self._subjects(), stream: subject})
                    if (reason := left.why.get(stream)) is not None:
                        found[there] = True
                        since, why = min(since, left.at), reason
            here = rows[mine >= max(self._begun, self._look(stream, subject))]
            if len(here):
                found[here] = True
                since = min(since, self._ask_behind(stream, subject).since)
                why = why or f"{self._server} has not answered for what it has"
        return OnTheWay(found, since, why) if found.any() else None

    # --- the present connection ------------------------------------------------------------------------------------

    def _ask_behind(self, stream: str, subject: str) -> _Fence:
        if (fence := self._fences.get(stream)) is None:
            fence = self._fences[stream] = _Fence(self.sent, self._clock())
            self._begin(fence, subject)
        return fence

    def _begin(self, fence: _Fence, subject: str) -> None:
        self._forget(fence)  # an answer to an earlier question does not count
        fence.answered = False
        fence.number, fence.reply = self._connection.answers.expect(partial(self._answered, fence))
        self._ask(fence, subject)

    def _ask(self, fence: _Fence, subject: str) -> None:
        fence.asked_at = self._clock()
        with contextlib.suppress(MamaError):  # the connection breaks
            self._connection.publish(subject, b"", fence.reply, NOBODY)

    @staticmethod
    def _answered(fence: _Fence, answer: Frame) -> None:
        fence.answered = fence.answered or not is_nobody(answer)

    def _look(self, stream: str, subject: str) -> int:
        """Token over the present connection below which all sends to the stream are certain."""
        fence, now = self._fences.get(stream), self._clock()
        if fence is None:
            pass
        elif not fence.answered:
            if now >= fence.asked_at + _ASK_AGAIN:
                self._ask(fence, subject)
        elif fence.again_at is None:
            fence.again_at = now + SETTLE
        elif fence.asked_at >= fence.again_at:
            self._certain[stream] = fence.end
            self._forget(self._fences.pop(stream))
        elif now >= fence.again_at:
            self._begin(fence, subject)
        return self._certain.get(stream, 0)

    def _forget(self, fence: _Fence) -> None:
        self._connection.answers.forget(fence.number)

    def _drop_fences(self) -> None:
        for fence in self._fences.values():
            self._forget(fence)
        self._fences.clear()

    # --- earlier connections: a thread for each --------------------------------------------------------------------

    def _ask_server(self, left: _Left, subjects: Mapping[str, str]) -> None:
        begun = bool(left.asked)
        for stream in subjects.keys() - left.asked.keys():
            left.asked[stream] = subjects[stream]
            left.why[stream] = f"{left.server} has not answered for what it has"
        if not begun:
            threading.Thread(target=self._probe, args=(left,), name="mama-probe", daemon=True).start()

    def _probe(self, left: _Left) -> None:
        warnings = WarningTimer(self._clock())
        while not self._closed.is_set() and left in self._left:
            topics = {stream: left.asked[stream] for stream in list(left.why)}
            try:
                found = why_unfenced(self._settings, left.server, topics) if topics else {}
            except Exception as e:  # noqa: BLE001 - rows wait until this thread says something
                found = dict.fromkeys(topics, f"{left.server} may still have messages, and cannot be asked: {e}")
            for stream in topics:
                if stream in found:
                    left.why[stream] = found[stream]
                else:
                    del left.why[stream]
            if found and warnings.due(self._clock()):
                why = next(iter(found.values()))
                logger.warning("%s; rows that were sent there wait until that is known (option onSilentServer)", why)
            self._closed.wait(_PROBE_AGAIN)
