"""State of each recorded device, and the records of its changes (TG-36, TG-41). Pure.

========== ==============================================================================================
state      condition
========== ==============================================================================================
ONLINE     heartbeats of the device's server arrive
SUSPECT    heartbeats arrive, and the last event of a topic carried errors or the quality INVALID
OFFLINE    heartbeats are missing, or none arrived yet
========== ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..events.event_codec import LITTLE, usual_call, write_except
from ..topics import Topic
from ..types import DevError, Severity
from .record_builder import RecordBuilder
from .records import RecordKind, device_topic, record_topic

Errors = tuple[DevError, ...]


_MISSING = (DevError("API_EventTimeout", Severity.ERR, "heartbeats are missing", ""),)


class RecordedDevice(NamedTuple):
    """Identity of a recorded device: ``name`` is ``domain/family/member``, ``tango_host`` ``host:port`` of its
    database, or of its server if it has none."""

    tango_host: str
    name: str
    dbase: bool

    @classmethod
    def of(cls, topic: Topic) -> RecordedDevice:
        return cls(topic.tango_host, topic.device, topic.dbase)


class DeviceStates:
    """States of all recorded devices of one recorder. ``now`` is nanoseconds since the epoch, ``prefix`` the first part
    of topics in the log."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._states: dict[RecordedDevice, RecordKind] = {}
        self._online: dict[RecordedDevice, bool] = {}
        self._errors: dict[RecordedDevice, dict[bytes, Errors]] = {}  # device -> topic -> errors of its last event
        self._causes: dict[RecordedDevice, Errors] = {}  #: why heartbeats of a device are missing
        self._written: dict[RecordedDevice, str] = {}  #: cause in the last OFFLINE record of a device
        self._refused: set[RecordedDevice] = set()  #: devices whose state record the log rejected

    def as_dict(self) -> dict[RecordedDevice, RecordKind]:
        return dict(self._states)

    def state(self) -> list[tuple[str, str, bool, str]]:
        """The states as a STATE record contains them."""
        return [(*device, kind.name) for device, kind in self._states.items()]

    def restore(self, state: Iterable[Any]) -> None:
        """The inverse of :meth:`state`.

        :raises ValueError, TypeError, KeyError: the state is invalid
        """
        self._states = {RecordedDevice(h, d, bool(b)): RecordKind[k] for h, d, b, k in state}

    def replay(self, device: RecordedDevice, kind: RecordKind) -> None:
        """Apply the record of a device's state that the log contains."""
        self._states[device] = kind

    def any_errors(self) -> bool:
        """Whether a device is SUSPECT, or would be if its heartbeats arrived."""
        return any(self._errors.values())

    def availability(self, records: RecordBuilder, topic: Topic, online: bool, now: int, cause: Errors = ()) -> None:
        """Note that heartbeats for a subscription arrive again, or are missing with this cause (empty: unknown)."""
        device = RecordedDevice.of(topic)
        self._online[device] = online
        self._causes[device] = () if online else cause or _MISSING
        if online:
            self._errors.get(device, {}).pop(topic.encode(), None)
        self._update(records, device, now)

    def failed(self, records: RecordBuilder, device: RecordedDevice, topic: bytes, errors: Errors, now: int) -> None:
        """Note that the last event of a topic carried errors or the quality INVALID."""
        self._errors.setdefault(device, {})[topic] = errors
        self._update(records, device, now)

    def succeeded(self, records: RecordBuilder, device: RecordedDevice, topic: bytes, now: int) -> None:
        """Note that the last event of a topic carried a valid value."""
        errors = self._errors.get(device)
        if errors is not None and errors.pop(topic, None) is not None:
            self._update(records, device, now)

    def _update(self, records: RecordBuilder, device: RecordedDevice, now: int) -> None:
        by_topic = self._errors.get(device)
        errors = next(iter(by_topic.values())) if by_topic else ()
        kind = RecordKind.OFFLINE
        if self._online.get(device):
            kind = RecordKind.SUSPECT if by_topic else RecordKind.ONLINE
        else:  # errors of events before that are no cause
            errors = self._causes.get(device) or errors or _MISSING
        cause = errors[0].reason if kind is RecordKind.OFFLINE else ""
        if self._states.get(device) is not kind or self._written.get(device, cause) != cause:
            self._states[device], self._written[device] = kind, cause
            self._write(records, device, kind, errors, now)

    def end_unless(
        self, records: RecordBuilder, is_recorded: Callable[[RecordedDevice], bool], reason: str, now: int
    ) -> None:
        """Set devices OFFLINE that are no longer recorded, with ``reason`` as text of the error, and forget them."""
        for device in [device for device in self._states if not is_recorded(device)]:
            if self._states.pop(device) is not RecordKind.OFFLINE:
                errors = (DevError("NotRecorded", Severity.WARN, reason, ""),)
                self._write(records, device, RecordKind.OFFLINE, errors, now)
            self._online.pop(device, None)
            self._causes.pop(device, None)
            self._written.pop(device, None)
            self._errors.pop(device, None)

    def refused(self, device: RecordedDevice) -> None:
        """Note that the log rejected the record of a device's state."""
        self._refused.add(device)

    def write_refused(self, records: RecordBuilder, now: int) -> None:
        """Add records of the states that the log rejected."""
        for device in self._refused & self._states.keys():
            del self._states[device]
            self._update(records, device, now)
        self._refused.clear()

    def _write(
        self, records: RecordBuilder, device: RecordedDevice, kind: RecordKind, errors: Errors, now: int
    ) -> None:
        topic = device_topic(*device)
        data = write_except(errors) if errors and kind is not RecordKind.ONLINE else b""
        frames = (topic.encode(), LITTLE, usual_call(0, bool(data)), data)
        records.add(kind, record_topic(topic, self._prefix), now, frames)
