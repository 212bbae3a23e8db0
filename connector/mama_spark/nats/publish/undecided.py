"""Sends messages outside of fast-ingest batches where a stream could acknowledge a repeated id and store nothing.

A replicated stream counts an id in a fast-ingest batch as stored once its message is proposed. A server that loses the
lead may remember ids of failed proposals; when it leads again within the duplicate window, it acknowledges them, and
stores nothing. So batches to these streams hold only messages that no server has seen. Others go alone, and are refused
while their ids are known in this way: at the beginning (an earlier attempt of the task may have sent them), and after
messages that a batch did not store.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from mama_spark.contracts.bridge import Refusals
from mama_spark.contracts.errors import AckTimeout, MamaError, OutcomeUnknown, PublishError
from mama_spark.contracts.message import Int64s, MessageBatch

from ..connection.socket_connection import SocketConnection
from ..jetstream.answers import StreamInfo, answer_of
from ..protocol.parser import Frame
from ..settings import NatsSettings
from .ack_queue import AckQueue

#: Messages stored one by one after a refusal, without another one, before a batch begins. Each batch that a refusal
#: ends costs a resend of the messages behind it, and messages in order wait for each other.
ALONE, ALONE_IN_ORDER = 4096, 32

_ASK_AGAIN = 1.0  #: seconds


@dataclass(slots=True)
class _Alone:
    """State of a stream to which messages go alone.

    :ivar left: number of messages that must still be stored anew
    :ivar asked: number of the question to the leader; ``ask_at``: time of the next one
    """

    left: float
    asked: int = 0
    ask_at: float = -math.inf


class UndecidedStreams:
    """Streams of one bridge to which messages go alone, until ``max_in_flight`` of them were stored anew; or one, by a
    leader in office for longer than the duplicate window: it has decided all before, and no other server remembers any.

    An earlier attempt may have sent its rows in another order, which ``exactlyOnce`` allows: the ids that a server
    remembers may then be anywhere among the rows of this attempt. So only such a leader ends the beginning of a task.
    """

    def __init__(
        self, connection: SocketConnection, settings: NatsSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._settings, self._clock = connection, settings, clock
        self._alone: dict[str, _Alone] = {}  # by stream: since a message was stored anew
        self._decided: set[str] = set()  # no server remembers ids of an earlier attempt

    def __contains__(self, stream: str) -> bool:
        alone = self._alone.get(stream)
        return alone is None or alone.left > 0

    def seen(self, stream: str) -> None:
        """Note that a server has seen messages that will be resent."""
        if (alone := self._alone.pop(stream, None)) is not None:
            self._connection.answers.forget(alone.asked)

    def stored_anew(self, stream: str, sequence: int) -> None:
        """Note that a message sent alone was stored at this sequence."""
        alone = self._alone.get(stream)
        if alone is None:
            any_order = self._settings.exactly_once and stream not in self._decided
            alone = self._alone[stream] = _Alone(math.inf if any_order else self._settings.max_in_flight)
        alone.left -= 1
        if self._clock() >= alone.ask_at:
            self._connection.answers.forget(alone.asked)
            alone.ask_at = self._clock() + _ASK_AGAIN
            alone.asked, reply = self._connection.answers.expect(partial(self._answered, stream, sequence))
            with contextlib.suppress(MamaError):  # the connection breaks
                self._connection.publish(f"{self._settings.api_prefix}STREAM.INFO.{stream}", b"", reply)

    def _answered(self, stream: str, sequence: int, answer: Frame) -> None:
        """Apply the leader's answer; a former leader that does not know of the election lacks the message."""
        with contextlib.suppress(MamaError, KeyError):  # no usable answer
            info = StreamInfo.of(answer_of(answer.payload))
            if info.last >= sequence and info.led_for > info.duplicate_window:
                self._alone[stream].left = 0
                self._decided.add(stream)

    def close(self) -> None:
        for stream in list(self._alone):
            self.seen(stream)


@dataclass(slots=True)
class _Probe:
    """A message that was sent alone and is acknowledged alone."""

    token: int
    stream: str
    at: float


class LoneMessages:
    """Messages of one bridge that are sent outside of batches.

    To :class:`UndecidedStreams` they are sent one at a time. While one is unanswered, nothing is sent to its stream,
    also no batch. After an unknown outcome, the publisher sends the same message again, and none that would be stored
    before it.

    After a refused message, which ends its batch, the next ones are sent one by one, too, so that each gets its own
    answer: all at once, or in order one at a time.
    """

    def __init__(
        self,
        undecided: UndecidedStreams,
        ack_queue: AckQueue,
        settings: NatsSettings,
        send_plain: Callable[[MessageBatch, int], None],
    ) -> None:
        self._undecided, self._ack_queue, self._settings = undecided, ack_queue, settings
        self._send_plain = send_plain
        self._probe: _Probe | None = None
        self._left = 0  # messages that must be stored one by one before a batch begins

    @property
    def under_way(self) -> bool:
        """Whether answers must be passed to :meth:`on_answer`."""
        return self._probe is not None or self._left > 0

    def send(
        self, stream: str, rows: MessageBatch, first_token: int, dedup_is_safe: Callable[[str], bool]
    ) -> int | None:
        """Number of messages sent; None = a batch may take them."""
        if self._probe is not None and self._probe.stream == stream:
            return 0
        if (stream in self._undecided and not dedup_is_safe(stream)) or (self._left and self._settings.ordered):
            if self._probe is not None:
                return 0
            self._probe = _Probe(first_token, stream, time.monotonic())
            self._send_plain(rows.slice(0, 1), first_token)
            return 1
        if not self._left:
            return None
        self._send_plain(rows, first_token)
        return len(rows)

    def on_answer(self, tokens: Int64s, *, refused: bool = False, stored_anew: int = 0) -> None:
        """Apply answers to messages sent alone; ``stored_anew``: the last sequence, 0 = none was stored anew."""
        if refused:
            self.start()
        self._left = max(0, self._left - (0 if refused else len(tokens)))
        probe = self._probe
        if probe is None or probe.token not in tokens:
            return
        self._probe = None
        if stored_anew:
            self._undecided.stored_anew(probe.stream, stored_anew)
        elif refused:  # perhaps for an id that a server keeps
            self._undecided.seen(probe.stream)
        self._ack_queue.wake()

    def start(self) -> None:
        """Send the next messages alone, after a refused one."""
        self._left = ALONE_IN_ORDER if self._settings.ordered else ALONE

    def on_disconnected(self) -> None:
        self._give_up(OutcomeUnknown("the connection to NATS was lost"))

    def give_up_late(self, idle: float) -> None:
        """Give up a message ``idle`` seconds after its time limit, when the window has given up, too."""
        timeout = self._settings.wait_timeout
        if self._probe is not None and time.monotonic() - self._probe.at >= timeout + idle:
            self._give_up(AckTimeout(f"no acknowledgement within {timeout:g} s"))

    def _give_up(self, error: PublishError) -> None:
        """Report the outcome; nothing is sent until the publisher has it."""
        if self._probe is not None:
            self._undecided.seen(self._probe.stream)
            self._ack_queue.refusals(Refusals(np.array([self._probe.token]), error, time.monotonic()))
            self._probe = None

    def close(self) -> None:
        self._undecided.close()
