"""Other recorders of one log: which ones there are, and whether they would record the same devices.

A log holds any number of recorders. What a recorder notes about itself has a topic of its name, and tells which devices
it records. Two that record the same devices below one prefix could not be told apart by readers, so the later one is
refused. Of two with one name, the later one goes on where the earlier was, and the earlier one ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import orjson

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.contracts.record_log import ReadLog, RecordLog
from mama_spark.recording.background_task import BackgroundTask

from ..log.records import RecordKind
from ..log.recovery import WRITERS, WriterRecords, WriterState
from .settings import TangoRecorderSettings

logger = logging.getLogger("mama_spark")

_EVERY = 60.0  #: seconds between two states of a recorder that does not say so
_SILENT = 3  #: a recorder that has missed so many states has ended


def about(settings: TangoRecorderSettings, started: int) -> dict[str, Any]:
    """The entry of a recorder about itself in its state; ``started`` is nanoseconds since the epoch."""
    return {
        "started": started, "host": settings.databases, "dbase": settings.dbase, "prefix": settings.prefix,
        "devices": list(settings.devices), "every": settings.state_every,
    }  # fmt: skip


def conflict(settings: TangoRecorderSettings, topic: str, states: Mapping[str, WriterState], now: int) -> str | None:
    """Why a recorder must not run beside the others of the log; None: it may. ``topic`` is that of the records about
    this recorder, ``now`` microseconds since the epoch."""
    for other, state in states.items():
        settings_there = state.state.get("recorder", {})
        age = (now - state.time) / 1e6
        if other == topic or state.stopped or age > _SILENT * float(settings_there.get("every", _EVERY)):
            continue
        same = sorted(_recorded_by(state) & _matching(settings, state))
        if same and settings_there.get("prefix", settings.prefix) == settings.prefix:
            name = other.rpartition(".")[2]
            return (
                f"the recorder {name} of this log records {', '.join(same[:3])}{' and more' * (len(same) > 3)} too "
                f"(it was heard {max(age, 0):.0f} s ago). Give this one other devices or another prefix, or stop that "
                f'one. If that one has ended, set name = "{name}" to go on where it was'
            )
    return None


def _recorded_by(state: WriterState) -> set[str]:
    return {str(name) for _, name, *_ in state.state["devices"]} | set(
        state.state.get("recorder", {}).get("devices", ())
    )


def _matching(settings: TangoRecorderSettings, state: WriterState) -> set[str]:
    """Devices and patterns of another recorder that these settings have, too."""
    there = state.state.get("recorder", {})
    hosts = str(there.get("host")).split(",")
    if there and (there.get("dbase") != settings.dbase or settings.hosts.isdisjoint(hosts)):
        return set()
    theirs = _recorded_by(state)
    return {
        name for name in theirs if settings.wants(name) or any(fnmatchcase(device, name) for device in settings.devices)
    }


class OtherRecorders:
    """Watches the records of other recorders in the log of a running one, in a thread.

    :param read: calls a function with the log
    :param topic: topic of the records about this recorder
    :param started: start of this recorder, nanoseconds since the epoch
    :param every: seconds between two looks
    :ivar found: topic -> first and last sequence of the last state of another recorder
    :ivar task: the thread, which fails when another recorder of this name has started
    """

    def __init__(self, read: ReadLog, topic: str, started: int, every: float) -> None:
        self._read, self._topic, self._started, self._every = read, topic, started, every
        self._after = 0
        self.found: dict[str, tuple[int, int]] = {}
        self._replaced = False
        self.task = BackgroundTask("tango-other-recorders", "watches other recorders", self._watch)

    def begin(self, states: Mapping[str, WriterState], after: int) -> None:
        """Note the recorders of the log, which was read up to the sequence ``after``, before the thread starts."""
        self.found = {topic: (one.first, one.last) for topic, one in states.items() if topic != self._topic}
        self._after = after

    def _watch(self) -> None:
        while not self.task.stopping.wait(self._every):
            try:
                self._read(self._look)
            except MamaError as error:  # the writer tells about outages
                logger.debug("the records of other recorders cannot be read: %s", error)
            if self._replaced:
                name = self._topic.rpartition(".")[2]
                raise ConfigError(
                    f"another recorder with the name {name} has started with this log: this one ends, that one goes on"
                )

    def _look(self, log: RecordLog) -> None:
        last = log.bounds().last
        records = WriterRecords()
        records.read(log, self._after, last, (WRITERS,))
        states = records.states()
        self.found.update({topic: (one.first, one.last) for topic, one in states.items() if topic != self._topic})
        self._replaced = any(_start_of(one) > self._started for one in records.rows.get(self._topic, ()))
        self._after = last


def _start_of(record: tuple[int, int, int, bytes]) -> int:
    """Start of the recorder that wrote this record, nanoseconds since the epoch; 0: unknown."""
    _, _, kind, data = record
    if kind != RecordKind.STATE:
        return 0
    try:
        return int(orjson.loads(data)["recorder"]["started"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return 0
