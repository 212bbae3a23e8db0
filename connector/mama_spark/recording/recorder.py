"""Recorder: writes what a source receives into a record log.

Its loop takes records from the source and passes them to the writer, which blocks while the log is slow or unreachable.
Meanwhile what comes waits in the source. Gap records report what the log rejected, once it takes them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.errors import ConfigError, MamaError, PublishError
from ..contracts.message import MessageBatch, RecordWriter
from ..contracts.record_log import ReadLog
from ..options.declare import option
from ..options.times import duration, duration_or_off
from ..options.values import nonempty_text
from ..packing.pack_headers import rows_of_messages
from ..telemetry.exposition import Metric, measured

GROUP = "recorder"
REPORT = option(
    "duration", duration_or_off, 60.0, GROUP, "Interval of lines of progress; 0 or `off`: none.", shown="60s"
)
METRICS = option(
    "text", nonempty_text, None, GROUP, "`host:port` of an HTTP server: Prometheus text at `/metrics`.", shown="none"
)
DRAIN = option(
    "duration", duration, 10.0, GROUP, "Longest wait at the end for acknowledgements of the log.", shown="10s"
)


class RecorderSettings(Protocol):
    """Settings of the recorder of one middleware; durations are in seconds. ``of(given)`` makes them from a table."""

    middleware: ClassVar[str]

    @property
    def name(self) -> str: ...
    @property
    def report(self) -> float: ...
    @property
    def metrics(self) -> str | None: ...
    @property
    def drain(self) -> float: ...

    @property
    def subject(self) -> tuple[Sequence[str], str, str]:
        """The recorded names, their kind, and their place, as text."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the metrics."""


logger = logging.getLogger("mama_spark")

_REPORT_PAUSE = 1.0  #: seconds between two attempts to write gap records for what the log rejected
_LOG_PERIOD = 10.0  #: seconds between two log messages about rejected records


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderCounts:
    """Totals since the recorder was made.

    :ivar waiting: events without a record yet, and records without an acknowledgement
    :ivar gaps: gap records; one that the log rejected counts again when it is written again
    """

    #: Field -> name of the metric, what it says.
    METRICS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "recorded": ("records_total", "records that were made"),
        "stored": ("stored_total", "records that the log acknowledged"),
        "waiting": ("waiting", "events and records that the log has not acknowledged"),
        "gaps": ("gaps_total", "gap records: what is known to be missing"),
        "refused": ("refused_total", "records that the log rejected"),
    }

    recorded: int
    stored: int
    waiting: int
    gaps: int
    refused: int

    def metrics(self, labels: Mapping[str, str]) -> list[Metric]:
        values = [getattr(self, field) for field in self.METRICS]
        return measured("mama_recorder_", dict(self.METRICS.values()), values, labels)


class RecordSource(Protocol):
    """Receives events, and makes records of them: messages without ids. Its recorder calls it in one thread, but
    :meth:`counts`. ``waiting``: events received without a record yet."""

    settings_class: ClassVar[type[RecorderSettings]]

    @property
    def settings(self) -> RecorderSettings: ...
    @property
    def waiting(self) -> int: ...

    def counts(self, *, recorded: int, stored: int, waiting: int, refused: int) -> RecorderCounts:
        """Counts, with its own; as a text they are a line of progress."""

    def resume(self, read: ReadLog) -> None:
        """Go on where the previous recorder of the name ended, before :meth:`begin`.

        :raises ConfigError: this one must not write into that log
        """

    def begin(self) -> Iterator[MessageBatch]:
        """Open, and begin to receive."""

    def records(self) -> Iterator[MessageBatch]:
        """Records of what came; waits a short time for it, but not after :meth:`stop`."""

    def due(self) -> Iterator[MessageBatch]:
        """Periodic work of the source, as records to write.

        :raises MamaError: it cannot go on
        """

    def idle(self) -> None:
        """Called while the log takes nothing."""

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        """Note that the log rejected these records."""

    def gaps(self) -> Iterator[MessageBatch]:
        """Gap records of rejected records, once; if the log rejects them, too, they are repeated."""

    def stop(self) -> None:
        """Begin to stop: record what has arrived."""

    def end(self) -> Iterator[MessageBatch]:
        """The last records."""

    def close(self) -> None:
        """Close the source; never raises; may be repeated."""


class Recorder:
    """Records what a source receives, in the thread of :meth:`run`; with ``ids``, no message is stored twice."""

    def __init__(self, source: RecordSource, writer: RecordWriter, *, ids: bool = True) -> None:
        self._source, self._writer, self._ids = source, writer, ids
        # Time of day: names a run.
        self._run_id = f"{source.settings.name}-{time.time_ns():x}"
        self._number = 1
        self._recorded = self._refused = 0
        self._failure: MamaError | None = None
        #: rejected batches that the source does not know yet, and the error of each record
        self._refused_batches: deque[tuple[MessageBatch, Sequence[PublishError]]] = deque()
        self._next_report = self._next_log = 0.0
        self._unwritten: list[MessageBatch] = []  #: what the writer did not take before the end

    @property
    def counts(self) -> RecorderCounts:
        waiting = self._source.waiting + self._writer.waiting + sum(map(_rows, self._unwritten))
        return self._source.counts(
            recorded=self._recorded, stored=self._writer.stored, waiting=waiting, refused=self._refused
        )

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        """The log rejected these records finally; gap records will report it. May be called in any thread."""
        self._refused += _rows(batch)
        if not self._writer.stored:
            self._failure = ConfigError(f"the log rejects records: {errors[0]}; it stored none, so the recorder ends")
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + _LOG_PERIOD
            logger.error("the log rejects records (%d so far; the recorder goes on, and records what they were as gaps "
                         "once the log takes it): %s", self._refused, errors[0])  # fmt: skip
        self._refused_batches.append((batch, errors))

    def run(self, stop: Callable[[], bool], say: Callable[[str], None] = lambda text: None) -> bool:
        """Record until ``stop`` returns True.

        :param say: gets lines about the progress
        :returns: whether the log acknowledged all records
        :raises ConfigError: the log rejects the first record
        :raises MamaError: the source cannot begin, the log cannot be written, or a thread failed
        """
        source = self._source
        stop = _with_progress(stop, source.settings.report, say, lambda: str(self.counts))
        with contextlib.closing(source):
            self._write(source.begin(), stop)
            say("ready")
            while not stop():
                if self._failure is not None:
                    raise self._failure
                self._write(source.records(), stop)
                self._report_refused(stop)
                self._write(source.due(), stop)
                self._writer.reconnect(self._while_waiting(stop))
            source.stop()
            return self._finish()

    def _finish(self) -> bool:
        source = self._source
        deadline = time.monotonic() + source.settings.drain

        def late() -> bool:
            return time.monotonic() > deadline

        unwritten, self._unwritten = self._unwritten, []
        for batch in unwritten:
            self._put(batch, late)
        while source.waiting and not late():
            self._write(source.records(), late)
            self._report_refused(late)
        self._writer.drain(max(0.0, deadline - time.monotonic()))  # now all rejections are known
        self._next_report = 0.0
        self._report_refused(late)
        self._write(source.end(), late)
        drained = self._writer.drain(max(0.0, deadline - time.monotonic()))
        return drained and not (self._refused_batches or self._unwritten or source.waiting)

    def _report_refused(self, stop: Callable[[], bool]) -> None:
        """Write gap records for what the log rejected, also again where it rejected them."""
        while self._refused_batches:
            self._source.refused(*self._refused_batches.popleft())
        if time.monotonic() >= self._next_report and (gaps := list(self._source.gaps())):
            self._next_report = time.monotonic() + _REPORT_PAUSE
            self._write(gaps, stop)

    def _write(self, batches: Iterable[MessageBatch], stop: Callable[[], bool]) -> None:
        for batch in batches:
            self._recorded += _rows(batch)
            self._put(replace(batch, ids=self._next_ids(len(batch))) if self._ids else batch, stop)

    def _put(self, batch: MessageBatch, stop: Callable[[], bool]) -> None:
        if not self._writer.write(batch, self._while_waiting(stop)):
            self._unwritten.append(batch)

    def _while_waiting(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        def given_up() -> bool:
            self._source.idle()
            return stop()

        return given_up

    def _next_ids(self, n: int) -> pa.Array:
        first, self._number = self._number, self._number + n
        return pc.binary_join_element_wise(self._run_id, pa.array(np.arange(first, first + n)).cast(pa.string()), "-")


def _rows(batch: MessageBatch) -> int:
    return int(rows_of_messages(batch).sum())


def _with_progress(
    stop: Callable[[], bool], every: float, say: Callable[[str], None], text: Callable[[], str]
) -> Callable[[], bool]:
    """``stop``, which is asked wherever the recorder waits, and also says a line every so many seconds (0: none)."""
    due = time.monotonic() + (every or math.inf)

    def asked() -> bool:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every
            say(text())
        return stop()

    return asked
