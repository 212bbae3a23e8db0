"""The loop of ``mama tango-source``: reads a log, saves the position, and pushes the events to Tango clients.

The position is saved before events are pushed, so that a process that is killed sends nothing twice; the next start
names the records whose events may have been lost with it. An orderly end waits until clients have taken what was sent;
what is not known to be written by then is served again by the next start.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.contracts.record_log import Bounds, Continuity, RecordLog, Records
from mama_spark.recording.log_follower import LogBatch, LogFollower
from mama_spark.recording.log_position import LogPosition, first_position
from mama_spark.telemetry.exposition import Metric, measured

from ..types import EventType
from .awaited_clients import AwaitedClients, AwaitedSubscription, Place
from .log_replayer import LogReplayer, ReplayCounts
from .registration import Registration

if TYPE_CHECKING:
    from mama_spark.tango.source.event_source import TangoEventSource

_POLL = 0.05  #: seconds between two looks whether records or clients came
REPORT_INTERVAL = 10.0  #: seconds between two lines about progress
LINGER = 5.0  #: seconds that an end waits for clients; they look for another source after 10 s without heartbeats
SUBSCRIPTION_INTERVAL = 1.0  #: seconds between two counts of the subscriptions
_COUNTED = (EventType.CHANGE, EventType.ARCHIVE, EventType.USER, EventType.ALARM, EventType.PERIODIC)


@dataclass
class StartPosition:
    """The position of a source in its log.

    :ivar at: the last record that was taken
    :ivar last: topic of a record -> sequence of the newest, from which the last values are read after a restart
    :ivar wanted: listeners: device, attribute, event, number of connections, identities of clients
    :ivar written: sequence of the last record whose events are known to have left this process; behind that of ``at``
        in the file of a process that was killed
    """

    at: LogPosition = field(default_factory=LogPosition)
    last: dict[str, int] = field(default_factory=dict)
    wanted: list[tuple[str, str, str, int, list[str]]] = field(default_factory=list)
    written: int = 0

    @classmethod
    def load(cls, path: Path) -> StartPosition:
        """The position from its file; where there is none, nothing was served.

        :raises ConfigError: the file is something else
        """
        try:
            found = orjson.loads(path.read_bytes())
            wanted = [
                (str(d), str(a), EventType[e].name, int(n), [str(client) for client in (*clients, ())[0]])
                for d, a, e, n, *clients in found["wanted"]
            ]
            last = {str(topic): int(sequence) for topic, sequence in found["last"].items()}
            served = int(found["served"])
            written, time = int(found.get("written", served)), found.get("time")
            at = LogPosition(str(found["identity"]), served, None if time is None else int(time))
            return cls(at, last, wanted, written)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
            raise ConfigError(f"{path} does not say how far a source has come ({e!r}); remove it to begin anew") from e

    def save(self, path: Path) -> None:
        """All of it, or nothing.

        :raises ConfigError: the file cannot be written
        """
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            more = {"last": self.last, "wanted": self.wanted, "written": self.written}
            new.write_bytes(orjson.dumps({**self.at._asdict(), **more}))
            new.replace(path)
        except OSError as e:
            raise ConfigError(f"{path}: {e.strerror or e}") from e


class ReplayService:
    """Serves one log until ``stop`` is set; with ``unregister``, the source is then removed from its database."""

    def __init__(
        self,
        source: TangoEventSource,
        replayer: LogReplayer,
        log: LogFollower,
        position_file: Path,
        stop: threading.Event,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._source, self._replayer, self._log = source, replayer, log
        self._position_file, self._stop = position_file, stop
        self._say, self._warn = say, warn
        self._position = StartPosition()
        self._awaited = AwaitedClients()
        self._registration = Registration(source)
        self.unregister = False
        self._warned = False
        self._waited = False  # for the clients that were subscribed before
        self._written_counts = (0, 0)  # records and messages up to `written`
        self._dropped = 0  # messages that clients did not take before the end
        self._counted = self._reported = time.monotonic()

    def metrics(self) -> list[Metric]:
        """The counters of the service; may be called in any thread."""
        counts, source = self._replayer.counts, self._source
        numbers = (
            counts.records, self._sent, self._awaited.not_delivered, counts.skipped, counts.bad,
            max(0, self._log.newest - self._position.at.served), len(source.devices), len(self._replayer.attributes),
            len(source.listeners()) if source.running else 0,
        )  # fmt: skip
        return measure(source.settings.server, self._log.stream, *numbers)

    @property
    def _sent(self) -> int:
        return self._source.heard - self._dropped

    def run(self, begin: str, hold: float) -> None:
        self._begin(begin)
        self._source.start()
        self._registration.update()
        try:
            self._serve(hold)
        finally:
            self._end()
            try:
                self._registration.end(remove=self.unregister)
            except MamaError as error:
                database = self._source.settings.database
                self._warn(f"the database {database} does not know that the source has ended: {error}")

    def _end(self) -> None:
        """Wait until clients have taken what was sent, and save what is known to be written."""
        self._tell_undelivered()
        if self._waited:  # or else the next run waits for them
            self._position.wanted = self._subscriptions()
        if not self._source.all_written():
            self._say(f"ending: waiting up to {LINGER:g} s until clients have taken what was sent")
        position = self._position
        if self._source.close(LINGER):
            position.written = position.at.served
        elif position.written < position.at.served:
            self._warn(
                f"clients did not take all events within {LINGER:g} s: records {position.written + 1} to "
                f"{position.at.served} are not counted, and are served again by the next start"
            )
            position.at = LogPosition(position.at.identity, position.written)
            self._replayer.counts.records, sent = self._written_counts
            self._dropped = self._source.heard - sent
        self._save()
        self._say(f"ended: {self._progress()}")

    def _register_new(self) -> None:
        """Tried again with the next records."""
        try:
            self._registration.update()
        except MamaError as error:
            self._warn(f"new devices cannot be registered in the database {self._source.settings.database}: {error}")

    def _serve(self, hold: float) -> None:
        devices = len(self._source.devices)
        where, count = self._source.address("<device>"), len(self._replayer.attributes)
        self._say(
            f"ready: {where}  ({devices} devices, {count} attributes; from record {self._position.at.served + 1} on; "
            f"position: {self._position_file}; Ctrl-C ends it)"
        )
        self._waited = self._wait_for_clients(hold)
        self._log.start(self._position.at)
        while not self._stop.is_set():
            batch = self._log.take(_POLL)
            if batch is not None:
                self._take(batch)
            self._report_and_count()

    def _begin(self, begin: str) -> None:
        position, bounds = StartPosition.load(self._position_file), self._log.bounds()
        at, last = first_position(begin, position.at, bounds, "latest"), None
        if at is position.at:
            saved = at
            state, first = self._log.call(lambda log: saved.resume(lambda: log, bounds))
            if state is Continuity.RECREATED:
                self._warn(f"the log {self._log.stream} is not the one that was served before: all of it is new")
                at = LogPosition(bounds.identity, first - 1)
            else:
                if position.written < at.served:
                    self._warn(
                        f"the last run was killed: events of the records {position.written + 1} to {at.served} may be "
                        f"lost, where clients were subscribed; --begin {position.written + 1} serves them again"
                    )
                last = None if state.went_back else position.last
        self._position = StartPosition(at, wanted=position.wanted, written=at.served)
        self._log.call(lambda log: self._load(log, last, bounds))
        counts = self._replayer.counts
        if last is None and counts.recorded and counts.recorded == counts.skipped and not counts.records + counts.bad:
            raise ConfigError(
                f"the log {self._log.stream} holds what a recorder wrote (mama record), and no rows of mamapub: "
                "there is nothing to serve; recorded events are read with mamasub"
            )
        self._replayer.counts = ReplayCounts()
        self._save()

    def _load(self, log: RecordLog, last: dict[str, int] | None, bounds: Bounds) -> None:
        """Load the last values; no client is connected yet, so that nothing is sent. ``last`` is where the newest
        values are; None: anywhere in the log."""
        self._replayer.last = {}
        ranges = [(bounds.first - 1, bounds.last)] if last is None else [(n - 1, n) for n in sorted(last.values())]
        for after, up_to in ranges:
            for records in log.read(after, up_to):
                self._push(records)

    def _wait_for_clients(self, seconds: float) -> bool:
        """Wait, after a restart, until the clients that were subscribed have subscribed again, which they do when they
        miss heartbeats. False: stopped before."""
        known = {(device.lower(), attribute.lower()) for device, attribute in self._replayer.attributes}
        self._awaited.wanted = {
            (d, a, EventType[e]): AwaitedSubscription(n, frozenset(clients))
            for d, a, e, n, clients in self._position.wanted
            if (d, a) in known
        }
        if not self._awaited.wanted:
            return True
        if seconds > 0:
            number = sum(awaited.connections for awaited in self._awaited.wanted.values())
            self._say(f"waiting up to {seconds:g} s for {number} subscriptions to come back")
        until = time.monotonic() + seconds
        while not self._stop.wait(_POLL):
            missing = self._missing()
            if not missing:
                self._awaited.wanted.clear()
                return True
            if time.monotonic() > until:
                number = sum(missing.values())
                self._warn(f"{number} subscriptions have not come back after {seconds:g} s: going on without them")
                return True
        return False

    def _missing(self) -> dict[Place, int]:
        return self._awaited.missing(self._source.listeners(), self._source.clients())

    def _take(self, batch: LogBatch) -> None:
        position, before = self._position, self._position.at
        position.at = batch.at
        if batch.warning:
            self._warn(batch.warning)
        if batch.at.identity != before.identity:
            self._replayer.last, position.written = {}, batch.at.served
        position.written = min(position.written, batch.at.served)
        if batch.records is not None:
            self._push(batch.records, remember=True)
            self._register_new()

    def _push(self, records: Records, remember: bool = False) -> None:
        """Push records to the subscribers; with ``remember``, save the position first."""
        self._replayer.remember(records)
        if remember:
            self._save()
        missing = self._missing()
        pushed = self._replayer.replay(records)
        if missing:
            self._awaited.pushed(pushed, int(records.sequences[0]), int(records.sequences[-1]), missing)
        for reason in self._replayer.counts.reasons:
            self._warn(reason)
        self._replayer.counts.reasons.clear()
        if self._replayer.counts.recorded and not self._warned:
            self._warned = True
            self._warn(
                f"the log {self._log.stream} also holds what a recorder wrote (mama record), which is not served"
            )

    def _save(self) -> None:
        self._position.last = self._replayer.last
        self._position.save(self._position_file)

    def _report_and_count(self) -> None:
        now = time.monotonic()
        if now - self._counted > SUBSCRIPTION_INTERVAL:
            self._counted, wanted = now, self._subscriptions()
            self._tell_undelivered()
            if self._note_written() or wanted != self._position.wanted:
                self._position.wanted = wanted
                self._save()
        if now - self._reported > REPORT_INTERVAL:
            self._reported = now
            self._say(f"source: {self._progress()}")

    def _note_written(self) -> bool:
        """Note that all pushed records are sent, if no client holds events back. True: more are sent than before."""
        if not self._source.all_written():
            return False
        before, self._position.written = self._position.written, self._position.at.served
        self._written_counts = self._replayer.counts.records, self._source.heard
        return self._position.written > before

    def _tell_undelivered(self) -> None:
        if self._awaited.wanted:
            for line in self._awaited.lines(self._missing()):
                self._warn(line)

    def _subscriptions(self) -> list[tuple[str, str, str, int, list[str]]]:
        clients = self._source.clients()
        return [
            (device, attribute, event.name, n, sorted(clients.get((device, attribute, event), ())))
            for (device, attribute, event), n in self._source.listeners().items()
            if event in _COUNTED
        ]

    def _progress(self) -> str:
        counts = self._replayer.counts
        return (
            f"{counts.records:,} records served up to {self._position.at.served:,}, "
            f"{self._sent:,} messages sent, {self._awaited.not_delivered:,} not_delivered, "
            f"{len(self._replayer.attributes):,} attributes, {counts.skipped:,} passed over, {counts.bad:,} bad"
        )


_METRICS = {
    "records_total": "records that were served",
    "messages_total": "messages that were sent to clients",
    "not_delivered_total": "events that clients missed while they were away",
    "skipped_total": "records of other sources or kinds",
    "bad_total": "records that could not be served",
    "lag": "records of the log that were not served yet",
    "devices": "devices",
    "attributes": "attributes",
    "subscriptions": "events of attributes that clients receive",
}


def measure(server: str, stream: str, *numbers: int) -> list[Metric]:
    """The counters of the service as metrics: ``numbers`` has one for each; ``server`` is ``exe/instance``."""
    return measured("mama_tango_source_", _METRICS, numbers, {"server": server, "stream": stream})
