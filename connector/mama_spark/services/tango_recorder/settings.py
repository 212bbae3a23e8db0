"""What a recorder is told: the table ``[recorder]`` of its configuration file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mama_spark.errors import ConfigError
from mama_spark.options import nearest
from mama_spark.options.values import byte_size, duration
from mama_spark.tango.giop.ior import BadAddress, parse_device, parse_tango_host
from mama_spark.tango.log.records import PREFIX
from mama_spark.tango.topics import NO_DATABASE, SCHEME
from mama_spark.tango.types import EVENT_NAMES, EventType

_WILD = re.compile(r"[*?\[]")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
DEFAULT_EVENTS = ("change", "attr_conf", "intr_change")


@dataclass(frozen=True)
class RecorderSettings:
    """Durations in seconds. Make it with :meth:`of`.

    :ivar host: ``host:port`` of the database, or of the one server where ``dbase`` is false
    :ivar devices: their names, without the host; or patterns (``*``, ``?``, ``[ab]``), where there is a database to ask
    :ivar attributes: names or patterns (``*``, ``?``, ``[ab]``); with the device in front where it has slashes
    :ivar name: of this recorder; one log has one recorder of a name
    :ivar prefix: first part of the topics in the log
    :ivar buffer: events that wait while the log is away; then the oldest are dropped, and counted
    :ivar buffer_octets: memory that they may take, about; likewise
    :ivar hwm: high-water mark of the sockets; None: what the servers say
    :ivar look_every: between two questions to the database, which devices match the patterns
    :ivar state_every: between two notes of what is known, from which the next recorder goes on
    :ivar report: between two lines of progress; 0: none
    :ivar drain: longest wait at the end for what the log has not acknowledged
    :ivar heartbeat: check of the heartbeats, and how old they may be
    """

    host: str
    devices: tuple[str, ...]
    dbase: bool = True
    attributes: tuple[str, ...] = ("*",)
    events: tuple[EventType, ...] = tuple(EVENT_NAMES[name] for name in DEFAULT_EVENTS)
    name: str = "recorder"
    prefix: str = PREFIX
    buffer: int = 500_000
    buffer_octets: int = 512 << 20
    hwm: int | None = None
    timeout: float = 3.0
    look_every: float = 60.0
    state_every: float = 60.0
    report: float = 60.0
    drain: float = 10.0
    heartbeat: float = 10.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RecorderSettings:
        """
        :param given: as it stands in the file
        :raises ConfigError: names the setting, and what it must be
        """
        known = ["url", *_PARSE]
        for key in given:
            if key not in known:
                raise ConfigError(f"[recorder] unknown setting {key!r}{nearest(key, known)}")
        for key in ("url", "devices"):
            if key not in given:
                raise ConfigError(f"[recorder] {key} is needed: what is to be recorded?")
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key != "url":
                attribute, parse = _PARSE[key]
                try:
                    values[attribute] = parse(value)
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"[recorder] {key} {error}, got {value!r}") from None
        host, dbase = _host(str(given["url"]))
        settings = cls(host, dbase=dbase, **values)
        for device in settings.devices:
            try:
                parse_device(settings.full_name(device))
            except BadAddress as error:
                raise ConfigError(f"[recorder] devices: {error}") from None
        if settings.device_patterns and not dbase:
            raise ConfigError(
                f"[recorder] devices: {', '.join(settings.device_patterns)} needs a database to ask which there are: "
                "of a server without one (#dbase=no), name the devices"
            )
        return settings

    @property
    def named_devices(self) -> list[str]:
        """Those that are no patterns."""
        return [device for device in self.devices if not _WILD.search(device)]

    @property
    def device_patterns(self) -> list[str]:
        """The others."""
        return [device for device in self.devices if _WILD.search(device)]

    def wants(self, device: str) -> bool:
        """Whether a device is to be recorded."""
        return device in self.devices or any(fnmatchcase(device, pattern) for pattern in self.device_patterns)

    def full_name(self, device: str) -> str:
        """For who calls it."""
        return f"{SCHEME}{self.host}/{device}{'' if self.dbase else NO_DATABASE}"

    def patterns(self, device: str) -> list[str]:
        """Those of the attributes that are of this device, in lower case."""
        found = []
        for pattern in self.attributes:
            of, slash, attribute = pattern.lower().rpartition("/")
            if not slash or fnmatchcase(device, of):
                found.append(attribute)
        return found

    def attributes_of(self, device: str) -> tuple[list[str], list[str]]:
        """Names, and patterns that are to be compared with what the device has."""
        patterns = self.patterns(device)
        return [p for p in patterns if not _WILD.search(p)], [p for p in patterns if _WILD.search(p)]

    @property
    def attribute_events(self) -> list[EventType]:
        """All but that of a device's interface."""
        return [event for event in self.events if event is not EventType.INTERFACE_CHANGE]


def _host(url: str) -> tuple[str, bool]:
    bare = url.strip().lower()
    dbase = not bare.endswith(NO_DATABASE)
    host = bare.removesuffix(NO_DATABASE).removeprefix(SCHEME).rstrip("/")
    try:
        parse_tango_host(host)
    except BadAddress:
        raise ConfigError(
            f"[recorder] url must be tango://host:port of a database, with #dbase=no of a server without: {url!r}"
        ) from None
    return host, dbase


def _names(value: Any) -> tuple[str, ...]:
    found = tuple(part.strip() for part in (value.split(",") if isinstance(value, str) else value) if part.strip())
    if not found:
        raise ValueError("must name at least one")
    return found


def _devices(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in _names(value)))


def _events(value: Any) -> tuple[EventType, ...]:
    found = []
    for name in _names(value):
        event = EVENT_NAMES.get(name.lower(), EVENT_NAMES.get(f"{name.lower()}_event"))
        if event is None or event is EventType.QUALITY:
            raise ValueError(f"must be among {', '.join(n for n in EVENT_NAMES if n != 'quality')}")
        found.append(event)
    return tuple(dict.fromkeys(found))


def _token(value: Any) -> str:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValueError("must be letters, digits, - and _")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) < 1:
        raise ValueError("must be a positive number")
    return int(value)


def _seconds(value: Any) -> float:
    return duration(str(value))


def _seconds_or_none(value: Any) -> float:
    return 0.0 if str(value) in ("0", "off") else duration(str(value))


_PARSE = {
    "devices": ("devices", _devices),
    "attributes": ("attributes", _names),
    "events": ("events", _events),
    "name": ("name", _token),
    "prefix": ("prefix", _token),
    "buffer": ("buffer", _count),
    "bufferOctets": ("buffer_octets", byte_size),
    "hwm": ("hwm", _count),
    "timeout": ("timeout", _seconds),
    "lookEvery": ("look_every", _seconds),
    "stateEvery": ("state_every", _seconds),
    "report": ("report", _seconds_or_none),
    "drain": ("drain", _seconds),
    "heartbeat": ("heartbeat", _seconds),
}
