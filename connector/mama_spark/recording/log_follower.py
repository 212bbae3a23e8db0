"""Reads a record log in a thread of its own, so that a log that does not answer holds nothing else up."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from ..contracts.backoff import Backoff
from ..contracts.record_log import Bounds, RecordLog, RecordLogBridge, Records
from ..publishing.window.reconnecting import ReconnectingBridge
from .background_task import BackgroundTask
from .log_position import LogPosition

POLL = Backoff(0.02, 0.5)  #: between two looks at the log, the longer the less happens
_BATCHES = 8  #: that wait to be taken

T = TypeVar("T")


class LogBatch(NamedTuple):
    """Records to serve. ``at``: position that is reached by them; ``warning``: text about a change of the log."""

    at: LogPosition
    records: Records | None = None
    warning: str = ""


class LogFollower:
    """Reads from a position on, until :meth:`close`; ``newest``: sequence of the newest record that it saw."""

    def __init__(self, bridge: ReconnectingBridge[RecordLogBridge], stream: str) -> None:
        self._bridge, self.stream = bridge, stream
        self.newest = 0
        self._at = LogPosition()
        self._queue: queue.Queue[LogBatch] = queue.Queue(_BATCHES)
        self._task = BackgroundTask("mama-log-follower", f"reads the log {stream}", self._run)

    def call(self, work: Callable[[RecordLog], T], timeout: float | None = None) -> T:
        """``work(log)``, before :meth:`start`; see :meth:`.ReconnectingBridge.call`."""
        return self._bridge.call(lambda bridge: work(bridge.log(self.stream)), timeout)

    def bounds(self) -> Bounds:
        """Bounds of the log, before :meth:`start`.

        :raises MamaError: the log does not exist, or does not answer
        """
        return self.call(lambda log: log.bounds(), timeout=0.0)

    def start(self, at: LogPosition) -> None:
        self._at = at
        self._task.start()

    def take(self, timeout: float = 0.0) -> LogBatch | None:
        """The next records; None: there are none yet.

        :param timeout: seconds to wait for them
        :raises MamaError: the log cannot be read any more
        """
        try:
            return self._queue.get(timeout > 0, timeout)
        except queue.Empty:
            self._task.check()
            return None

    def close(self) -> None:
        self._task.stop()
        while self._task.running:
            with suppress(queue.Empty):  # the thread may wait for a place
                self._queue.get(timeout=0.05)

    def _run(self) -> None:
        delays, stopping = POLL.delays(), self._task.stopping
        while not stopping.is_set():
            before = self._at.served
            self.call(self._read_new)
            if self._at.served > before:
                delays.reset()
            stopping.wait(delays.next())

    def _read_new(self, log: RecordLog) -> None:
        bounds = log.bounds_with(self._at.served, self._at.identity)
        self.newest = bounds.last
        at, warning = self._at.in_log(log, bounds)
        if warning:
            self._give(at, warning=warning)
        if bounds.last <= at.served:
            return
        for records in log.read(at.served, bounds.last):
            if self._task.stopping.is_set():
                return
            self._give(LogPosition(at.identity, int(records.sequences[-1]), int(records.times[-1])), records)
        if self._at.served < bounds.last:
            self._give(LogPosition(at.identity, bounds.last))

    def _give(self, at: LogPosition, records: Records | None = None, warning: str = "") -> None:
        self._at = at
        self._queue.put(LogBatch(at, records, warning))
        self._bridge.progressed()
