"""Recovery from a log, which the caller passes: the last states of the recorders that write it, and the state of one.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import RecordLog

from .device_states import RecordedDevice
from .recorder_state import BadState, RecorderState
from .records import DecodedRecords, RecordKind, decode, newest_state

WRITERS = "*.*"  #: topics of the records about recorders
_FIRST_RANGE = 50_000  #: records that are searched first, from the end of the log; each further range is doubled
_BESIDE_US = 300_000_000  #: microseconds before the newest state in which states of other recorders are searched


@dataclass(frozen=True, slots=True)
class WriterState:
    """Newest complete state of one recorder in a log: its content, the sequences of its first and last STATE record,
    the time in microseconds since the epoch when the last one was stored, and whether the recorder has stopped
    since."""

    state: dict[str, Any]
    first: int
    last: int
    time: int
    stopped: bool


@dataclass(slots=True)
class WriterRecords:
    """Records about recorders from a part of a log: topic -> sequence, time, kind and data of each, in order."""

    rows: dict[str, list[tuple[int, int, int, bytes]]] = field(default_factory=dict)

    def read(self, log: RecordLog, after: int, up_to: int, topics: tuple[str, ...]) -> None:
        """Add the records of a range that lies before those read so far."""
        found: dict[str, list[tuple[int, int, int, bytes]]] = {}
        for records in log.read(after, up_to, topics):
            decoded = decode(records.payloads)
            columns = (records.topics.to_pylist(), records.sequences.tolist(), records.times.tolist())
            rows = zip(*columns, decoded.kind.tolist(), decoded.frames.datas, strict=True)
            for topic, sequence, time, kind, data in rows:
                if kind in (RecordKind.STATE, RecordKind.STARTED, RecordKind.STOPPED):
                    found.setdefault(topic, []).append((sequence, time, kind, data))
        self.rows = {
            topic: found.get(topic, []) + self.rows.get(topic, [])
            for topic in (*self.rows, *(found.keys() - self.rows))
        }

    def states(self) -> dict[str, WriterState]:
        """Topic -> newest complete state."""
        found = {topic: _newest(rows) for topic, rows in self.rows.items()}
        return {topic: state for topic, state in found.items() if state is not None}


def _newest(rows: list[tuple[int, int, int, bytes]]) -> WriterState | None:
    states = [row for row in rows if row[2] == RecordKind.STATE]
    found = newest_state([data for *_, data in states])
    if found is None:
        return None
    state, first, last = found
    ends = [kind for *_, kind, _ in rows if kind != RecordKind.STATE]
    return WriterState(state, states[first][0], states[last][0], states[last][1], ends[-1:] == [RecordKind.STOPPED])


def writer_states(log: RecordLog, first: int, last: int) -> dict[str, WriterState]:
    """The last state of every recorder of a log, by the topic of its records: of the recorders that wrote a state
    lately, and of those that these know. ``first`` is the first sequence of the log, ``last`` the last one to
    search."""
    found, low = _search(log, first, last, WRITERS)
    states = found.states()
    if not states:
        return {}
    begin = log.sequence_at(max(state.time for state in states.values()) - _BESIDE_US)
    if begin <= low:
        found.read(log, max(begin, first) - 1, low, (WRITERS,))
    states = found.states()
    for state in list(states.values()):
        for topic, (at, to) in state.state.get("others", {}).items():
            if first <= at and (topic not in states or states[topic].last < to):
                other = WriterRecords()
                other.read(log, at - 1, min(to + 1, last), (topic,))
                states.update(other.states())
    return states


def _search(log: RecordLog, first: int, last: int, topic: str) -> tuple[WriterRecords, int]:
    """Search backwards for a complete state; returns what was read, and the last sequence that was not."""
    found, low, size = WriterRecords(), last, _FIRST_RANGE
    while low >= first and not found.states():
        after = max(first - 1, low - size)
        found.read(log, after, low, (topic,))
        low, size = after, 2 * size
    return found, low


def restore(
    state: RecorderState, log: RecordLog, is_recorded: Callable[[RecordedDevice], bool] = lambda device: True
) -> None:
    """Restore the state of the last recorder of the same name: its last STATE records, and the records after them.

    :param state: empty state; its name selects the STATE records
    :param is_recorded: whether a device is this recorder's, not that of another one
    :raises ConfigError: the last state is invalid
    :raises MamaError: the log cannot be read
    """
    bounds = log.bounds()
    found, _ = _search(log, bounds.first, bounds.last, state.topic)
    newest = found.states().get(state.topic)
    topics = (f"{state.prefix}.*.*.*.*.*.*",)

    def tail() -> Iterator[DecodedRecords]:
        for records in log.read(bounds.first - 1 if newest is None else newest.last, bounds.last, topics):
            yield decode(records.payloads)

    try:
        state.restore(None if newest is None else newest.state, tail(), is_recorded)
    except BadState as error:
        raise ConfigError(f"log {log.name!r}: {error}; give the recorder another name") from None
