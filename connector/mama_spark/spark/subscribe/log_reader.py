"""Logs, as the sources of this room use them: opened for one question or one range, patient while nobody answers.

A bridge is opened anew each time, for Spark moves readers between processes; the connections stay warm in the pool of
the process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mama_spark.backoff import RECONNECT
from mama_spark.bridges import log_bridge
from mama_spark.bridges.reconnecting import ReconnectingBridge
from mama_spark.errors import Unavailable
from mama_spark.options import ReadOptions
from mama_spark.record_log import RecordLog, RecordLogBridge, Records

T = TypeVar("T")


class OutageTimer:
    """How long to go on while nobody answers: ``waitTimeout`` from the last sign of life."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._delays = RECONNECT.delays()
        self.renew()

    def renew(self) -> None:
        self._until = time.monotonic() + self._seconds
        self._delays.reset()

    def wait(self, error: Unavailable) -> None:
        """Sleep before the next try.

        :raises Unavailable: ``error`` itself, when it has been too long
        """
        delay = self._delays.next()
        if time.monotonic() + delay > self._until:
            raise error
        time.sleep(delay)


def ask(o: ReadOptions, question: Callable[[RecordLogBridge], T]) -> T:
    """The answer to ``question``, which may be asked several times.

    :raises MamaError: the last one, when nobody answered for ``waitTimeout``, or at once when waiting cannot help
    """
    reach = ReconnectingBridge(lambda: log_bridge(o, o.wait_timeout), o.wait_timeout)
    try:
        return reach.call(question)
    finally:
        reach.close()


def read(
    o: ReadOptions,
    find: Callable[[RecordLogBridge], RecordLog | None],
    after: int,
    up_to: int,
    topics: Sequence[str],
    check: Callable[[RecordLog], None],
) -> Iterator[Records]:
    """The records of a range; goes on behind the last one that came when the middleware was away for a while.

    :param find: the log; None ends the read
    :param check: called with the log when all have been read
    :raises Unavailable: nothing came for ``waitTimeout``
    """
    patience = OutageTimer(o.wait_timeout)
    while True:
        try:
            with contextlib.closing(log_bridge(o, o.wait_timeout)) as bridge:
                bridge.open()
                log = find(bridge)
                if log is None:
                    return
                for records in log.read(after, up_to, topics):
                    if len(records):
                        yield records
                        after = int(records.sequences[-1])
                    patience.renew()
                check(log)
                return
        except Unavailable as e:
            patience.wait(e)
