"""State of each recorded device, and the records that are written when it changes (TG-36, TG-41). Pure.

========== ==============================================================================================
state      condition
========== ==============================================================================================
ONLINE     heartbeats of its server arrive
SUSPECT    heartbeats arrive, but the last event of a topic was an error, or its value was INVALID
OFFLINE    heartbeats do not arrive, or never did
========== ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..events.event_codec import write_except
from ..events.frames import LITTLE, usual_call
from ..topics import Topic
from ..types import DevError, Severity
from .record_builder import RecordBuilder
from .records import DEVICE_STATES, RecordKind, device_topic, record_topic

Errors = tuple[DevError, ...]


class RecordedDevice(NamedTuple):
    """Identity of a device.

    :ivar dbase: its server has a database
    """

    tango_host: str
    name: str
    dbase: bool

    @classmethod
    def of(cls, topic: Topic) -> RecordedDevice:
        """The device that a topic belongs to."""
        return cls(topic.tango_host, topic.device, topic.dbase)


class DeviceStates:
    """The states of all devices that a recorder knows.

    :param prefix: of topics in the log
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._states: dict[RecordedDevice, RecordKind] = {}
        self._online: dict[RecordedDevice, bool] = {}
        self._errors: dict[RecordedDevice, dict[bytes, Errors]] = {}  #: by topic, of the last event
        self._refused: set[RecordedDevice] = set()  #: devices whose state record the log refused

    def __repr__(self) -> str:
        kinds = list(self._states.values())
        counts = ", ".join(f"{kinds.count(kind)} {kind.name.lower()}" for kind in DEVICE_STATES if kind in kinds)
        return f"<DeviceStates {counts or 'none'}>"

    def as_dict(self) -> dict[RecordedDevice, RecordKind]:
        """A copy."""
        return dict(self._states)

    # --- restored from the log ---

    def state(self) -> list[tuple[str, str, bool, str]]:
        """For the recorder's STATE record."""
        return [(*device, kind.name) for device, kind in self._states.items()]

    def restore(self, state: Iterable[Any]) -> None:
        """:raises ValueError, TypeError, KeyError: this is no such state"""
        self._states = {RecordedDevice(h, d, bool(b)): RecordKind[k] for h, d, b, k in state}

    def replay(self, device: RecordedDevice, kind: RecordKind) -> None:
        """Apply a record of the log."""
        self._states[device] = kind

    # --- events ---

    def any_errors(self) -> bool:
        """Some device is SUSPECT, or would be if it were online."""
        return any(self._errors.values())

    def availability(self, records: RecordBuilder, topic: Topic, online: bool, now: int) -> None:
        """Heartbeats for a subscription arrive again, or are missing."""
        device = RecordedDevice.of(topic)
        self._online[device] = online
        if online:
            self._errors.get(device, {}).pop(topic.encode(), None)
        self._update(records, device, now)

    def failed(self, records: RecordBuilder, device: RecordedDevice, topic: bytes, errors: Errors, now: int) -> None:
        """The last event of a topic was an error, or INVALID."""
        self._errors.setdefault(device, {})[topic] = errors
        self._update(records, device, now)

    def succeeded(self, records: RecordBuilder, device: RecordedDevice, topic: bytes, now: int) -> None:
        """The last event of a topic was a value."""
        errors = self._errors.get(device)
        if errors is not None and errors.pop(topic, None) is not None:
            self._update(records, device, now)

    def _update(self, records: RecordBuilder, device: RecordedDevice, now: int) -> None:
        """Write a record if the state of the device has changed."""
        by_topic = self._errors.get(device)
        errors = next(iter(by_topic.values())) if by_topic else ()
        kind = RecordKind.OFFLINE
        if self._online.get(device):
            kind = RecordKind.SUSPECT if by_topic else RecordKind.ONLINE
        elif not errors:
            errors = (DevError("API_EventTimeout", Severity.ERR, "no heartbeat in time", ""),)
        if self._states.get(device) is not kind:
            self._states[device] = kind
            self._write(records, device, kind, errors, now)

    # --- devices that end, and records that the log refused ---

    def end_unless(
        self, records: RecordBuilder, is_recorded: Callable[[RecordedDevice], bool], reason: str, now: int
    ) -> None:
        """Set devices that are not recorded any more OFFLINE, and forget them."""
        for device in [device for device in self._states if not is_recorded(device)]:
            if self._states.pop(device) is not RecordKind.OFFLINE:
                errors = (DevError("NotRecorded", Severity.WARN, reason, ""),)
                self._write(records, device, RecordKind.OFFLINE, errors, now)
            self._online.pop(device, None)
            self._errors.pop(device, None)

    def refused(self, device: RecordedDevice) -> None:
        """The log refused the record of a device's state."""
        self._refused.add(device)

    @property
    def has_refused(self) -> bool:
        """The log does not have the state of some device."""
        return bool(self._refused)

    def write_refused(self, records: RecordBuilder, now: int) -> None:
        """Write the states again that the log refused."""
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
