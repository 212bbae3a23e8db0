"""Settings of a recorder: the table ``[recorder]`` of its configuration file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from mama_spark.contracts.errors import ConfigError
from mama_spark.options import camel, duration
from mama_spark.options.declare import option
from mama_spark.options.document import FileSection
from mama_spark.options.tables import parse_table
from mama_spark.options.times import duration_or_off
from mama_spark.options.values import byte_size, integer, plain_name, some_names
from mama_spark.recording.recorder import DRAIN, GROUP, METRICS, REPORT

from ..client.keep_alive import HEARTBEAT_AGE
from ..giop.ior import BadAddress, parse_device, parse_tango_host
from ..log.device_states import RecordedDevice
from ..log.records import PREFIX
from ..topics import NO_DATABASE, SCHEME
from ..types import EVENT_NAMES, EventType

_WILD = re.compile(r"[*?\[]")
DEFAULT_EVENTS = ("change", "attr_conf", "intr_change")


def _devices(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in some_names(value)))


def _events(value: Any) -> tuple[EventType, ...]:
    found = []
    for name in some_names(value):
        event = EVENT_NAMES.get(name.lower(), EVENT_NAMES.get(f"{name.lower()}_event"))
        if event is None or event is EventType.QUALITY:
            raise ValueError(f"must be among {', '.join(n for n in EVENT_NAMES if n != 'quality')}")
        found.append(event)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class TangoRecorderSettings:
    """Settings of a recorder. Durations are in seconds. :meth:`of` makes them from a table.

    :ivar host: ``host:port`` of the database; of the one server if ``dbase`` is false
    :ivar alternates: other addresses of the database, tried if the first one cannot be reached
    """

    middleware: ClassVar[str] = "tango"
    host: str
    devices: tuple[str, ...] = option(
        "names", _devices, (), GROUP,
        "Devices, or patterns (`*`, `?`, `[ab]`), which need a database.", shown="needed",
    )  # fmt: skip
    dbase: bool = True
    alternates: tuple[str, ...] = ()
    attributes: tuple[str, ...] = option(
        "names", some_names, ("*",), GROUP,
        "Names or patterns, after the device where they have slashes.", shown="`*`",
    )  # fmt: skip
    events: tuple[EventType, ...] = option(
        "events", _events, tuple(EVENT_NAMES[name] for name in DEFAULT_EVENTS), GROUP, "Types of events.",
        shown="change, attr_conf, intr_change",
    )  # fmt: skip
    name: str = option("name", plain_name, "recorder", GROUP, "Name of this recorder, unique in its log.")
    prefix: str = option("name", plain_name, PREFIX, GROUP, "First part of the topics in the log.")
    buffer: int = option(
        "integer", integer(1), 500_000, GROUP,
        "Events kept while the log is away; beyond, the oldest are dropped and counted.",
    )  # fmt: skip
    buffer_bytes: int = option(
        "size", byte_size, 512 << 20, GROUP, "Most memory of these events, about.", shown="512 MiB"
    )
    hwm: int | None = option(
        "integer", integer(1), None, GROUP, "High-water mark of the sockets.", shown="what the servers say"
    )
    timeout: float = option("duration", duration, 3.0, GROUP, "Longest wait for an answer of a server.", shown="3s")
    look_every: float = option(
        "duration", duration, 60.0, GROUP,
        "Interval of questions to the database.", shown="60s",
    )  # fmt: skip
    state_every: float = option(
        "duration", duration, 60.0, GROUP,
        "Interval of records of the recorder's state.", shown="60s",
    )  # fmt: skip
    report: float = REPORT
    metrics: str | None = METRICS
    drain: float = DRAIN
    error_summary: float = option(
        "duration", duration_or_off, 600.0, GROUP,
        "Interval of summaries of equal errors. 0 or `off`: each error is recorded.", shown="10m",
    )  # fmt: skip
    retry_refused: float = option(
        "duration", duration, 300.0, GROUP,
        "Longest time between attempts to subscribe to an attribute that sends no such events yet.", shown="5m",
    )  # fmt: skip
    loss_check: float = option(
        "duration", duration_or_off, 60.0, GROUP,
        "Longest time until a loss at the end is recorded. 0 or "
        "`off`: never.", shown="60s",
    )  # fmt: skip
    heartbeat: float = option(
        "duration", duration, HEARTBEAT_AGE, GROUP,
        "Oldest heartbeat that counts; servers send one every 9 s.", shown="10s",
    )  # fmt: skip

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TangoRecorderSettings:
        """Make settings from the table of a file.

        :raises ConfigError: a key is unknown or missing, or a value is invalid; the message names the key
        """
        rest = {key: value for key, value in given.items() if key != "url"}
        values = parse_table(cls, rest, "[recorder]", camel, required=("devices",))
        if "url" not in given:
            raise ConfigError("[recorder] the key url is missing; give tango://host:port of the database")
        hosts, dbase = _hosts(str(given["url"]))
        settings = cls(hosts[0], dbase=dbase, alternates=hosts[1:], **values)
        for device in settings.devices:
            try:
                parse_device(settings.full_name(device))
            except BadAddress as error:
                raise ConfigError(f"[recorder] devices: {error}") from None
        if settings.device_patterns and not dbase:
            raise ConfigError(
                f"[recorder] devices: {', '.join(settings.device_patterns)} needs a database to resolve it: "
                "name the devices of a server without one (#dbase=no)"
            )
        settings._check_pipes()
        return settings

    def _check_pipes(self) -> None:
        """Check that a recorder of pipes records only pipes, by their names.

        :raises ConfigError: there are other events of attributes than ``pipe``, or a name has a wildcard
        """
        if EventType.PIPE in self.events and (
            set(self.attribute_events) != {EventType.PIPE} or any(_WILD.search(name) for name in self.attributes)
        ):
            raise ConfigError(
                "[recorder] events: pipe needs a recorder of its own, with the names of the pipes in attributes: "
                'events = ["pipe"], attributes = ["mypipe"], without * and ?'
            )

    @property
    def subject(self) -> tuple[Sequence[str], str, str]:
        """The recorded names, the kind of thing that they name, and its place."""
        return self.devices, "devices", f"{SCHEME}{self.databases}"

    @property
    def labels(self) -> dict[str, str]:
        return {"recorder": self.name, "network": "tango"}

    @property
    def named_devices(self) -> list[str]:
        return [device for device in self.devices if not _WILD.search(device)]

    @property
    def device_patterns(self) -> list[str]:
        return [device for device in self.devices if _WILD.search(device)]

    def wants(self, device: str) -> bool:
        """Whether a device, ``domain/family/member`` in lower case, is recorded."""
        return device in self.devices or any(fnmatchcase(device, pattern) for pattern in self.device_patterns)

    def records(self, device: RecordedDevice) -> bool:
        """Whether a device is recorded, by its Tango host too. Topics of a server without a database may name its host
        in another way."""
        if device.dbase != self.dbase or not self.wants(device.name):
            return False
        if self.dbase:
            return device.tango_host in self.hosts
        return device.tango_host.rpartition(":")[2] == self.host.rpartition(":")[2]

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset((self.host, *self.alternates))

    @property
    def databases(self) -> str:
        """The addresses of the database as in ``TANGO_HOST``, in the order in which they are tried."""
        return ",".join((self.host, *self.alternates))

    def full_name(self, device: str) -> str:
        """Full name of a device, which connects to it."""
        return f"{SCHEME}{self.databases}/{device}{'' if self.dbase else NO_DATABASE}"

    def attributes_of(self, device: str) -> tuple[list[str], list[str]]:
        """Names and patterns of the attributes to record of this device, in lower case."""
        split = (pattern.lower().rpartition("/") for pattern in self.attributes)
        found = [attribute for of, slash, attribute in split if not slash or fnmatchcase(device, of)]
        return [one for one in found if not _WILD.search(one)], [one for one in found if _WILD.search(one)]

    @property
    def attribute_events(self) -> list[EventType]:
        """Event types of attributes: all but interface changes."""
        return [event for event in self.events if event is not EventType.INTERFACE_CHANGE]


def _hosts(url: str) -> tuple[tuple[str, ...], bool]:
    bare = url.strip().lower()
    dbase = not bare.endswith(NO_DATABASE)
    host = bare.removesuffix(NO_DATABASE).removeprefix(SCHEME).rstrip("/")
    try:
        hosts = tuple(map(str, parse_tango_host(host)))
    except BadAddress:
        raise ConfigError(
            f"[recorder] url must be tango://host:port of a database, with #dbase=no of a server without: {url!r}"
        ) from None
    return hosts, dbase


def documents() -> list[FileSection]:
    """The configuration files for ``mama docs``."""
    from ..source.log_replayer import Rule

    recorder = (("`[recorder]`, with `url` of the database", TangoRecorderSettings),)
    rules = (("`[[attribute]]`", Rule),)
    return [
        FileSection("Recorder: `mama record --conf-file conf/tango-record.toml`", recorder, camel),
        FileSection("Event source: `mama tango-source --conf-file conf/tango-source.toml`", rules),
    ]
