"""Streams to which messages go one at a time, lest a repeated id is taken for stored.

A replicated stream counts an id as stored in a fast-ingest batch once its message is proposed. A server that loses the
lead may remember ids of proposals that came to nothing; when it leads again within the duplicate window, it
acknowledges them, and stores nothing. So batches to these streams hold only messages that no server has seen. Others
go alone, and are refused while their ids are known so: at the beginning (an earlier attempt of the task may have sent
them), and after messages that a batch did not store.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mama_spark.contracts.errors import MamaError

from ..connection.socket_connection import SocketConnection
from ..jetstream.answers import StreamInfo, answer_of
from ..protocol.parser import Frame
from ..settings import NatsSettings

_ASK_AGAIN = 1.0  #: seconds


@dataclass(slots=True)
class _Alone:
    """:ivar left: so many messages must be stored anew
    :ivar asked: number of the question who leads; ``ask_at``: when the next one is due
    """

    left: float
    asked: int = 0
    ask_at: float = -math.inf


class UndecidedStreams:
    """Of one bridge. Messages go alone until as many as may be in flight were stored anew, or one, by a leader that
    leads for longer than the duplicate window: it has decided all that came before, and nobody else remembers any.

    An earlier attempt may have sent its rows in another order: those that a server remembers are then anywhere among
    the rows of this one. So with ``exactlyOnce``, which allows that, only such a leader ends the beginning of a task.
    """

    def __init__(
        self, connection: SocketConnection, settings: NatsSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._settings, self._clock = connection, settings, clock
        self._alone: dict[str, _Alone] = {}  # by stream: since a message was stored anew
        self._decided: set[str] = set()  # nobody remembers what an earlier attempt has sent

    def __contains__(self, stream: str) -> bool:
        alone = self._alone.get(stream)
        return alone is None or alone.left > 0

    def seen(self, stream: str) -> None:
        """A server has seen messages that will be sent again."""
        if (alone := self._alone.pop(stream, None)) is not None:
            self._connection.answers.forget(alone.asked)

    def stored_anew(self, stream: str, sequence: int) -> None:
        """A message that was sent alone has this sequence."""
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
        """By the leader, or by one that does not know yet that it is none any more, and so lacks the message."""
        with contextlib.suppress(MamaError, KeyError):  # nobody says it
            info = StreamInfo.of(answer_of(answer.payload))
            if info.last >= sequence and info.led_for > info.duplicate_window:
                self._alone[stream].left = 0
                self._decided.add(stream)

    def close(self) -> None:
        for stream in list(self._alone):
            self.seen(stream)
