"""Reads a record log in a thread of its own, so that a log that does not answer holds nothing else up."""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.record_log import Continuity, RecordLogBridge, Records, continuity, went_back
from mama_spark.publishing.window.reconnecting import ReconnectingBridge

POLL = Backoff(0.02, 0.5)  #: between two looks at the log, the longer the less happens
_BATCHES = 8  #: that wait to be taken


class LogBatch(NamedTuple):
    """Records to serve.

    :ivar identity: of the log
    :ivar served: sequence of the last record that is done with when these are
    :ivar warning: what happened to the log, for people
    """

    identity: str
    served: int
    records: Records | None = None
    warning: str = ""


class LogFollower:
    """Reads from a position on, until :meth:`close`.

    :param begin: ``saved``, ``earliest``, ``latest`` or a sequence
    :param identity, served: the saved position; an empty identity: there is none
    :param time: when the record ``served`` was stored; None = not known
    :ivar begins_at: sequence of the first record that is read
    """

    begins_at = 0

    def __init__(
        self,
        bridge: ReconnectingBridge[RecordLogBridge],
        stream: str,
        begin: str,
        identity: str,
        served: int,
        time: int | None = None,
    ) -> None:
        self._bridge, self._stream, self._begin = bridge, stream, begin
        self._identity, self._served = identity, served
        self._time = time
        self._queue: queue.Queue[LogBatch | MamaError] = queue.Queue(_BATCHES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mama-source-log", daemon=True)

    def start(self) -> None:
        """Find where to begin, then read.

        :raises MamaError: the log does not exist, or does not answer
        """
        bounds = self._bridge.call(lambda bridge: bridge.log(self._stream).bounds(), timeout=0.0)
        if self._begin == "earliest" or (self._begin == "saved" and not self._identity):
            self._identity, self._served, self._time = bounds.identity, bounds.first - 1, None
        elif self._begin == "latest":
            self._identity, self._served, self._time = bounds.identity, bounds.last, bounds.time
        elif self._begin != "saved":
            served = min(max(int(self._begin), 1) - 1, bounds.last)
            self._identity, self._served, self._time = bounds.identity, served, None
        self.begins_at = self._served + 1
        self._thread.start()

    def take(self) -> LogBatch | None:
        """The next records, without waiting.

        :raises MamaError: the log cannot be read any more
        """
        try:
            found = self._queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, MamaError):
            raise found
        return found

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            while self._thread.is_alive():
                while self.take_quietly():
                    pass
                self._thread.join(0.05)

    def take_quietly(self) -> bool:
        """Make place for the thread to end; whether there was something."""
        try:
            self._queue.get_nowait()
        except queue.Empty:
            return False
        return True

    def _run(self) -> None:
        delays = POLL.delays()
        try:
            while not self._stop.is_set():
                before = self._served
                self._bridge.call(self._read_new)
                if self._served > before:
                    delays.reset()
                self._stop.wait(delays.next())
        except MamaError as e:
            self._queue.put(e)

    def _read_new(self, bridge: RecordLogBridge) -> None:
        log = bridge.log(self._stream)
        bounds = log.bounds()
        state = continuity(self._served + 1, self._identity, bounds)
        warning = ""
        if state is Continuity.RECREATED:
            warning = f"the log {self._stream} was deleted and made again: all of it is new"
            self._identity, self._served, self._time = bounds.identity, bounds.first - 1, None
        elif (begin := went_back(lambda: log, bounds, self._served + 1, self._time)) is not None:
            warning = (
                f"the sequences of the log {self._stream} went back behind {self._served}, which was served (restored "
                f"from an older copy?): going on at {begin}"
            )
            self._served, self._time = begin - 1, None
        elif state is Continuity.REMOVED:
            gone = f"{self._served + 1} to {bounds.first - 1}"
            warning = f"records {gone} are gone from the log {self._stream}, and were not served"
            self._served = bounds.first - 1
        if warning:
            self._queue.put(LogBatch(self._identity, self._served, warning=warning))
        if bounds.last <= self._served:
            return
        for records in log.read(self._served, bounds.last):
            if self._stop.is_set():
                return
            self._served, self._time = int(records.sequences[-1]), int(records.times[-1])
            self._queue.put(LogBatch(self._identity, self._served, records))
        if self._served < bounds.last:
            self._served, self._time = bounds.last, None
