"""``mama tango-source --from LOG``: serve what is in a log to Tango clients, until Ctrl-C or SIGTERM.

How far it has come stands in a file, which is written before the events are pushed: whatever ends the process, no event
is sent twice. What it had taken and not pushed when it was killed, a batch at most, is not sent either; the log has it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson

from ..bridges import log_bridge
from ..bridges.reconnecting import ReconnectingBridge
from ..errors import ConfigError, OptionError, Unavailable
from ..options import SubscribeOptions
from ..options.toml_file import read_toml
from ..options.urls import log_urls, redact_url, split_stream
from ..record_log import Bounds, RecordLog, RecordLogBridge, Records
from ..services.tango_server.log_replayer import LogReplayer, ReplayCounts, Rule
from ..tango.types import EventType
from .arguments import options
from .signals import stopping

if TYPE_CHECKING:
    from ..services.tango_server.event_source import TangoEventSource

OFTEN, SELDOM = 0.05, 0.5  #: seconds between two looks at the log, the longer the less happens
REPORT = 10.0  #: seconds between two lines about progress
SUBSCRIBED = 1.0  #: seconds between two looks at who is subscribed
_WATCHED = (EventType.CHANGE, EventType.ARCHIVE, EventType.USER, EventType.ALARM, EventType.PERIODIC)


@dataclass
class StartPosition:
    """How far a source has come.

    :ivar identity: of the log, which changes when it is made again
    :ivar served: sequence of the last record that was taken
    :ivar last: topic of a record -> sequence of the newest, from which the last values are read after a restart
    :ivar wanted: device, attribute, event, number of clients: who was listening
    """

    identity: str
    served: int
    last: dict[str, int] = field(default_factory=dict)
    wanted: list[tuple[str, str, str, int]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> StartPosition | None:
        """:raises ConfigError: the file is something else"""
        try:
            found = orjson.loads(path.read_bytes())
            wanted = [(str(d), str(a), EventType[e].name, int(n)) for d, a, e, n in found["wanted"]]
            last = {str(topic): int(sequence) for topic, sequence in found["last"].items()}
            return cls(str(found["identity"]), int(found["served"]), last, wanted)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
            raise ConfigError(f"{path} does not say how far a source has come ({e!r}); remove it to begin anew") from e

    def save(self, path: Path) -> None:
        """All of it, or nothing.

        :raises ConfigError: the file cannot be written
        """
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            new.write_bytes(orjson.dumps(vars(self)))
            new.replace(path)
        except OSError as e:
            raise ConfigError(f"{path}: {e.strerror or e}") from e


def run(args: argparse.Namespace) -> int:
    """Exit code 0 after Ctrl-C or SIGTERM.

    :raises MamaError: it cannot serve
    """
    try:
        from ..services.tango_server.event_source import TangoEventSource
    except ModuleNotFoundError as e:
        raise ConfigError(f"the event source cannot be loaded ({e}); try: pip install 'mama-spark[tango]'") from e

    urls = _log_urls(args.log)
    servers, stream = split_stream(urls)
    args.url = ",".join(servers)
    o = SubscribeOptions.parse(options(args, SubscribeOptions, stream=stream or urlsplit(servers[0]).netloc))
    host, port = _address(args.bind)
    source = TangoEventSource(
        (), host, port, args.heartbeat_port, args.event_port, args.hwm,
        server=args.server, host_name=args.host_name, advertise=args.advertise or (), heartbeat_period=args.heartbeat,
    )  # fmt: skip
    place = args.position or default_position(urls, args.server)
    place.parent.mkdir(parents=True, exist_ok=True)
    serving = LogReplayer(source, read_rules(args.conf_file), args.name)
    reach = ReconnectingBridge(lambda: log_bridge(o, o.wait_timeout), o.wait_timeout)
    with stopping() as stop, _one_at_a_time(place):
        try:
            _Server(source, serving, reach, str(o.stream), place, stop).run(args.begin, args.hold)
        finally:
            source.close()
            reach.close()
    return 0


class _Server:
    """The loop: reads the log, remembers how far, pushes."""

    def __init__(
        self,
        source: TangoEventSource,
        serving: LogReplayer,
        reach: ReconnectingBridge[RecordLogBridge],
        stream: str,
        place: Path,
        stop: threading.Event,
    ) -> None:
        self._source, self._serving, self._reach, self._stream = source, serving, reach, stream
        self._place, self._stop = place, stop
        self._at = StartPosition("", 0)
        self._warned = False
        self._looked = self._reported = time.monotonic()

    def run(self, begin: str, hold: float) -> None:
        self._begin(begin)
        self._source.start()
        devices = len(self._source.devices)
        where, count = self._source.address("<device>"), len(self._serving.attributes)
        say(
            f"ready: {where}  ({devices} devices, {count} attributes; from record {self._at.served + 1} on; "
            f"position: {self._place}; Ctrl-C ends it)"
        )
        waited = self._hold(hold)
        pause = OFTEN
        while not self._stop.is_set():
            before = self._at.served
            self._reach.call(self._serve)
            pause = OFTEN if self._at.served > before else min(2 * pause, SELDOM)
            self._watch()
            self._stop.wait(pause)
        if waited:  # or else the next run waits for them
            self._at.wanted = self._wanted()
        self._save()
        say(f"ended: {self._progress()}")

    # --- where to begin ---

    def _begin(self, begin: str) -> None:
        """Last values of all attributes, and the position to go on from."""
        saved = StartPosition.load(self._place)
        bounds = self._reach.call(lambda bridge: bridge.log(self._stream).bounds(), timeout=0.0)
        known = saved is not None and saved.identity == bounds.identity
        served = bounds.last
        if begin == "saved" and saved is not None:
            served = saved.served if known else bounds.first - 1
            if not known:
                warn(f"the log {self._stream} is not the one that was served before: all of it is new")
        elif begin == "earliest":
            served = bounds.first - 1
        elif begin.isdigit():
            served = max(int(begin), 1) - 1
        self._at = StartPosition(bounds.identity, served, wanted=saved.wanted if saved else [])
        last = saved.last if saved is not None and known and begin == "saved" else None
        self._reach.call(lambda bridge: self._load(bridge.log(self._stream), last, bounds))
        counts = self._serving.counts
        if last is None and counts.recorded and counts.recorded == counts.passed and not counts.records + counts.bad:
            raise ConfigError(
                f"the log {self._stream} holds what a recorder wrote (mama record), and no rows of mamapub: there is "
                "nothing to serve; recorded events are read with mamasub"
            )
        self._serving.counts = ReplayCounts()
        self._save()

    def _load(self, log: RecordLog, last: dict[str, int] | None, bounds: Bounds) -> None:
        """Nobody is connected yet, so nothing is sent.

        :param last: where the newest values are; None: anywhere in the log
        """
        self._serving.last = {}
        ranges = [(bounds.first - 1, bounds.last)] if last is None else [(n - 1, n) for n in sorted(last.values())]
        for after, up_to in ranges:
            for records in log.read(after, up_to):
                self._take(records)

    def _hold(self, seconds: float) -> bool:
        """After a restart: what is new waits for those who were listening, who come back when they miss heartbeats.
        False: the end came before."""
        known = {(device.lower(), attribute.lower()) for device, attribute in self._serving.attributes}
        wanted = {(d, a, EventType[e]): n for d, a, e, n in self._at.wanted if (d, a) in known}
        if not wanted:
            return True
        if seconds > 0:
            say(f"waiting up to {seconds:g} s for {sum(wanted.values())} subscriptions to come back")
        until = time.monotonic() + seconds
        while not self._stop.wait(OFTEN):
            back = self._source.listeners()
            missing = sum(max(number - back.get(one, 0), 0) for one, number in wanted.items())
            if not missing:
                return True
            if time.monotonic() > until:
                warn(f"{missing} subscriptions have not come back after {seconds:g} s: going on without them")
                return True
        return False

    # --- going on ---

    def _serve(self, bridge: RecordLogBridge) -> None:
        log = bridge.log(self._stream)
        bounds = log.bounds()
        if bounds.identity != self._at.identity:
            warn(f"the log {self._stream} was deleted and made again: all of it is new")
            self._at.identity, self._at.served, self._serving.last = bounds.identity, bounds.first - 1, {}
        if bounds.last <= self._at.served:
            return
        if self._at.served + 1 < bounds.first:
            warn(f"records {self._at.served + 1} to {bounds.first - 1} are gone from the log, and were not served")
        for records in log.read(self._at.served, bounds.last):
            if self._stop.is_set():
                return
            self._at.served = int(records.sequences[-1])
            self._take(records, remember=True)
            self._watch()
        self._at.served = bounds.last

    def _take(self, records: Records, remember: bool = False) -> None:
        self._serving.note(records)
        if remember:
            self._save()
        self._serving.take(records)
        for reason in self._serving.counts.reasons:
            warn(reason)
        self._serving.counts.reasons.clear()
        if self._serving.counts.recorded and not self._warned:
            self._warned = True
            warn(f"the log {self._stream} also holds what a recorder wrote (mama record), which is not served")

    def _save(self) -> None:
        self._at.last = self._serving.last
        self._at.save(self._place)

    def _watch(self) -> None:
        now = time.monotonic()
        if now - self._looked > SUBSCRIBED:
            self._looked, wanted = now, self._wanted()
            if wanted != self._at.wanted:
                self._at.wanted = wanted
                self._save()
        if now - self._reported > REPORT:
            self._reported = now
            say(f"source: {self._progress()}")

    def _wanted(self) -> list[tuple[str, str, str, int]]:
        """Who is listening."""
        found = self._source.listeners().items()
        return [(device, attribute, event.name, n) for (device, attribute, event), n in found if event in _WATCHED]

    def _progress(self) -> str:
        counts = self._serving.counts
        return (
            f"{counts.records:,} records served up to {self._at.served:,}, {counts.messages:,} messages sent, "
            f"{len(self._serving.attributes):,} attributes, {counts.passed:,} passed over, {counts.bad:,} bad"
        )


def read_rules(path: Path | None) -> list[Rule]:
    """
    :raises ConfigError: the file is none of ours
    """
    if path is None:
        return []
    content = read_toml(path)
    tables = content.pop("attribute", [])
    if content or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: only tables [[attribute]] are known")
    try:
        return [Rule.of(table) for table in tables]
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def default_position(urls: tuple[str, ...], server: str) -> Path:
    """One file a log and server, below ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    places = [urlsplit(redact_url(url, mask="")) for url in urls]
    names = [f"{place.scheme}://{place.netloc}{place.path}" for place in places]
    key = hashlib.sha256("\n".join((*names, server)).encode()).hexdigest()[:16]
    return Path(base) / "mama-spark" / f"tango-source-{server.replace('/', '-')}-{key}.json"


def _log_urls(text: str) -> tuple[str, ...]:
    try:
        return log_urls(text)
    except ValueError as e:
        raise OptionError(f"--from {e}") from None


def _address(bind: str) -> tuple[str, int]:
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise OptionError(f"--bind wants HOST:PORT, got {bind!r}")
    return host.strip("[]"), int(port)


@contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """Two processes with one position would serve half of the log each."""
    import fcntl

    try:
        lock = place.with_name(f"{place.name}.lock").open("w")
    except OSError as e:
        raise ConfigError(f"{place}: {e.strerror or e}") from e
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(f"another source goes on from {place}; give one of them another --position") from None
        yield


def say(text: str) -> None:
    print(text, flush=True)


def warn(text: str) -> None:
    print(f"mama: {text}", file=sys.stderr, flush=True)
