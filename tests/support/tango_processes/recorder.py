"""A recorder of Tango events in a test, in a thread or as users run it, and what its log says afterwards."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
from mama_spark.cli.commands.record import log_options, record
from mama_spark.options import SinkOptions
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.log.records import GapCause, RecordKind, RecordTopic, parse_record_topic
from mama_spark.tango.log.records import decode as decode_records
from mama_spark.tango.recorder.settings import TangoRecorderSettings
from mama_spark.tango.types import AttributeValue
from mama_spark.testing.waiting import until

from tests.support.malamute.restartable_broker import RestartableMalamuteBroker, RestartableNatsServer
from tests.support.nats.nats_servers import Admin
from tests.support.tango_processes.servers import TangoServer

STREAM = "TANGO"
SLOW = {"heartbeat": "30s", "timeout": "60s"}  #: settings that allow for a machine that stands still now and then
_PATIENCE = 60.0


class RecordedEvent:
    """One record of the log, taken apart."""

    def __init__(self, sequence: int, topic: str, payload: bytes) -> None:
        self.sequence, self.topic = sequence, topic
        self.found = decode_records(pa.array([payload], pa.binary()))
        assert not self.found.bad, self.found.bad
        self.kind = RecordKind(int(self.found.kind[0]))
        self.ctr, self.count = int(self.found.ctr[0]), int(self.found.count[0])
        self.first, self.last = int(self.found.first[0]), int(self.found.last[0])
        self.cause = GapCause(int(self.found.cause[0]))
        self.frames = [column[0] for column in self.found.frames.columns()]

    def __repr__(self) -> str:
        return f"<{self.sequence} {self.topic} {self.kind.name} {self.ctr} {self.first}-{self.last}>"

    @property
    def place(self) -> RecordTopic:
        return parse_record_topic(self.topic)

    @property
    def reading(self) -> float:
        event = decode(self.frames)
        assert isinstance(event, Event)
        assert isinstance(event.data, AttributeValue)
        return float(np.asarray(event.data.read)[0])


class RecorderLog:
    """What a recorder wrote into the stream ``TANGO`` of a middleware."""

    def __init__(self, room: RestartableNatsServer | RestartableMalamuteBroker) -> None:
        self.room = room

    @property
    def admin(self) -> Admin:
        """Of the NATS server."""
        assert isinstance(self.room, RestartableNatsServer)
        return self.room.admin

    @property
    def given(self) -> dict[str, str]:
        """Options that lead there."""
        if isinstance(self.room, RestartableMalamuteBroker):
            return self.room.options(STREAM)
        return {"url": f"{self.room.server.url}/{STREAM}", "createStream": "true"}

    @property
    def options(self) -> SinkOptions:
        return log_options({**self.given, "waitTimeout": "2s"})

    def records(self, *kinds: RecordKind, end: str = "") -> list[RecordedEvent]:
        """Those of these kinds whose topic ends so, in order."""
        found = [RecordedEvent(*m[:3]) for m in self.room.messages(STREAM)] if self.room.counter(STREAM)() else []
        return [r for r in found if (not kinds or r.kind in kinds) and r.topic.endswith(end)]

    def counters(self, attribute: str) -> list[int]:
        return [r.ctr for r in self.records(RecordKind.EVENT, end=f".{attribute}.change")]

    def push_until(self, lab: TangoServer, more: int, attribute: str = "double") -> list[int]:
        """Push until so many more events stand here; their counters, and those before."""
        before = len(self.counters(attribute))
        until(lambda: len(self.counters(attribute)) >= before + more, lambda: lab.push(attribute, 1.0))
        return self.counters(attribute)


def settings(lab: TangoServer, **more: Any) -> TangoRecorderSettings:
    """Change events of ``double``, if nothing else is said. Servers may be slow: it is no error of theirs that the log
    would tell."""
    given = {"attributes": ["double"], "events": ["change"], "devices": list(lab.devices), **SLOW}
    return TangoRecorderSettings.of({**given, "url": _url(lab), **more})


def _url(lab: TangoServer) -> str:
    return f"tango://{lab.database.host}" if lab.database else f"tango://127.0.0.1:{lab.port}#dbase=no"


class RecorderThread:
    """A recorder in a thread of this process.

    :ivar whole: whether the log acknowledged everything; None while it runs
    :ivar error: with which it ended
    """

    def __init__(self, options: SinkOptions, given: TangoRecorderSettings) -> None:
        self._stop = threading.Event()
        self.said: list[str] = []
        self.whole: bool | None = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.whole = record(given, options, self._stop.is_set, self.said.append)
            except BaseException as error:  # noqa: BLE001 - shown by the test
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it ended by itself."""
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.wait()
        assert self.error is None, self.error


def measured(address: str, what: str) -> float:
    """What the recorder that serves its metrics there says of that; 0 before it does."""
    try:
        with urlopen(f"http://{address}/metrics") as answer:
            page = answer.read().decode()
    except OSError:
        return 0.0
    return sum(map(float, re.findall(rf"(?m)^mama_recorder_{what}\{{.*\}} (\S+)$", page)))


def words(log: RecorderLog, lab: TangoServer, folder: Path, **more: str) -> list[str]:
    """Of ``mama record``.

    :param more: settings of its configuration file
    """
    conf = folder / "record.toml"
    lines = ["[recorder]", *(f'{name} = "{value}"' for name, value in {**SLOW, **more}.items())]
    lines += ["[log]", "createStream = true"] if "createStream" in log.given else []
    conf.write_text("\n".join([*lines, ""]))
    given = ["record", "--url", _url(lab), "--device", lab.devices[0]]
    given += [] if "attributes" in more else ["--attribute", "double"]
    given += ["--event", "change", "--conf-file", str(conf)]
    return given + [word for name, value in log.given.items() for word in ("-o", f"{name}={value}")]


class RecorderProcess:
    """``mama record`` as users run it.

    :param more: settings of its configuration file
    """

    def __init__(self, log: RecorderLog, lab: TangoServer, folder: Path, **more: str) -> None:
        self.out = folder / "recorder.out"
        with self.out.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mama_spark.cli", *words(log, lab, folder, **more)], stdout=out, stderr=out
            )

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def accounted(records: Iterable[RecordedEvent], attribute: str = "double") -> list[int]:
    """Counters of the events of this attribute, and of those that gaps tell of, in the order of the log."""
    found: list[int] = []
    for r in records:
        if r.kind is RecordKind.EVENT and r.topic.endswith(f".{attribute}.change"):
            found.append(r.ctr)
        elif r.kind is RecordKind.GAP and r.place.attribute == attribute:
            assert r.count == r.last - r.first + 1
            found += range(r.first, r.last + 1)
    return found


def every_event_is_accounted_for(records: Iterable[RecordedEvent], attribute: str = "double") -> bool:
    """Whether each counter is that of an event, or is counted once by the gaps around it. One gap may tell of losses
    with events between them: it has the first, the last and the number."""
    told_of = [r for r in records if r.kind in (RecordKind.EVENT, RecordKind.GAP) and r.place.attribute == attribute]
    events = {r.ctr for r in told_of if r.kind is RecordKind.EVENT}
    gaps = [r for r in told_of if r.kind is RecordKind.GAP]
    lost = set(range(min(events), max(events) + 1)) - events
    told = {counter for gap in gaps for counter in range(gap.first, gap.last + 1)}
    return lost <= told and len(lost) == sum(gap.count for gap in gaps)


def consecutive(counters: list[int]) -> bool:
    return counters == list(range(counters[0], counters[0] + len(counters)))
