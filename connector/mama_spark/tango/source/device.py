"""Declarations of an event source's devices, attributes, and event criteria (TG-03, TG-06). Pure.

They are the arguments of :class:`~mama_spark.tango.source.event_source.TangoEventSource`; clients get them as attribute
configurations. They contain no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mama_spark.contracts.errors import ConfigError

from ..giop.cdr import CdrError, CdrWriter
from ..topics import is_publishable
from ..types import (
    DTYPES,
    KIND_OF,
    AlarmLimits,
    ArchiveCriteria,
    AttributeConfig,
    ChangeCriteria,
    DataType,
    Format,
    PeriodicCriteria,
    ValueKind,
    Writable,
)
from ..value_changes import WITHOUT_THRESHOLDS

NOT_SPECIFIED = "Not specified"  #: text of Tango for a property without a value
MAX_X, MAX_Y = 1_000_000, 10_000  #: default of the largest dimensions of spectra and images
Threshold = float | tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Criteria:
    """Event criteria: which changes of a value are sent as events (TG-06). Without thresholds, every change is sent.

    :ivar abs_change: smallest difference to the last sent value; or a pair: largest negative, smallest positive one
    :ivar rel_change: the same in percent of the last sent value
    :ivar period: milliseconds after which the value is sent in any case, for archive events
    :ivar detect: apply the criteria to pushed events too, not only to :meth:`TangoEventSource.set`
    :raises ConfigError: a threshold or the period is invalid
    """

    abs_change: Threshold = None
    rel_change: Threshold = None
    period: int | None = None
    detect: bool = False

    def __post_init__(self) -> None:
        for limits in (_pair(self.abs_change), _pair(self.rel_change)):
            if limits is not None and not (limits[0] < 0 < limits[1]):
                raise ConfigError(f"a threshold must be above 0, or a pair (below 0, above 0): {limits}")
        if self.period is not None and self.period <= 0:
            raise ConfigError(f"the period is {self.period} ms; it must be above 0")

    @property
    def absolute(self) -> tuple[float, float] | None:
        return _pair(self.abs_change)

    @property
    def relative(self) -> tuple[float, float] | None:
        return _pair(self.rel_change)

    @property
    def empty(self) -> bool:
        return self.abs_change is None and self.rel_change is None and self.period is None


def _pair(threshold: Threshold) -> tuple[float, float] | None:
    if threshold is None:
        return None
    return threshold if isinstance(threshold, tuple) else (-threshold, threshold)


def _text(threshold: Threshold) -> str:
    pair = _pair(threshold)
    if pair is None:
        return NOT_SPECIFIED
    return f"{pair[1]:g}" if pair[0] == -pair[1] else f"{pair[0]:g},{pair[1]:g}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """Declaration of one attribute.

    :ivar settable: the attribute has a set value; clients still cannot write it
    :ivar change: criteria of change events; None: the attribute sends none
    :ivar archive: criteria of archive events; None: the attribute sends none
    :ivar alarm: send alarm events when the quality changes to or from ALARM or WARNING
    :ivar period: period of periodic events in milliseconds; None: the attribute sends none
    :ivar data_ready: data_ready events may be pushed
    :ivar max_x: largest x dimension; 0: the default
    :ivar max_y: largest y dimension of an image; 0: the default
    :ivar enum_labels: labels of a DevEnum
    :raises ConfigError: name, type, format or period is invalid
    """

    name: str
    data_type: DataType = DataType.DOUBLE
    format: Format = Format.SCALAR
    settable: bool = False
    change: Criteria | None = Criteria()
    archive: Criteria | None = Criteria()
    alarm: bool = True
    period: int | None = None
    data_ready: bool = False
    max_x: int = 0
    max_y: int = 0
    label: str = ""
    description: str = ""
    unit: str = ""
    min_value: str = NOT_SPECIFIED
    max_value: str = NOT_SPECIFIED
    display_format: str = ""
    limits: AlarmLimits | None = None
    enum_labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_publishable(self.name):
            raise ConfigError(f"invalid attribute name: {self.name!r:.100}")
        if self.format is Format.UNKNOWN or self.data_type not in KIND_OF:
            raise ConfigError(f"{self.name}: an attribute cannot be {self.format!r} of {self.data_type!r}")
        if self.data_type is DataType.ENCODED and self.format is not Format.SCALAR:
            raise ConfigError(f"{self.name}: an attribute of DevEncoded must be a scalar")
        if self.period is not None and self.period <= 0:
            raise ConfigError(f"{self.name}: the period is {self.period} ms; it must be above 0")
        for field in ("label", "description", "unit", "min_value", "max_value", "display_format", "enum_labels"):
            check_text(getattr(self, field), f"{self.name}: {field}")

    @property
    def key(self) -> str:
        """Name in topics: in lower case."""
        return self.name.lower()

    @property
    def kind(self) -> ValueKind:
        """Kind of its values in AttrValUnion. Only the attribute State has a single state, not a sequence."""
        if self.data_type is DataType.STATE and self.format is Format.SCALAR and self.key == "state":
            return ValueKind.DEVICE_STATE
        return KIND_OF[self.data_type]

    @property
    def numeric(self) -> bool:
        """Whether values can be compared with thresholds."""
        return self.kind in DTYPES and self.data_type not in WITHOUT_THRESHOLDS

    def config(self) -> AttributeConfig:
        """The configuration that clients get (ATT_CONF_DATA, TG-13)."""
        change, archive = self.change or Criteria(), self.archive or Criteria()
        limits = self.limits or _NO_LIMITS
        return AttributeConfig(
            name=self.name,
            writable=Writable.READ_WRITE if self.settable else Writable.READ,
            data_format=self.format,
            data_type=self.data_type,
            max_dim_x=1 if self.format is Format.SCALAR else self.max_x or MAX_X,
            max_dim_y=(self.max_y or MAX_Y) if self.format is Format.IMAGE else 0,
            description=self.description or "No description",
            label=self.label or self.name,
            unit=self.unit,
            standard_unit="No standard unit",
            display_unit="No display unit",
            format=self.display_format or _FORMATS.get(self.data_type, "%d"),
            min_value=self.min_value,
            max_value=self.max_value,
            writable_attr_name=self.name if self.settable else "None",
            root_attr_name=NOT_SPECIFIED,
            enum_labels=self.enum_labels,
            att_alarm=limits,
            ch_event=ChangeCriteria(_text(change.rel_change), _text(change.abs_change)),
            per_event=PeriodicCriteria(str(self.period or 1000)),
            arch_event=ArchiveCriteria(
                _text(archive.rel_change),
                _text(archive.abs_change),
                NOT_SPECIFIED if archive.period is None else str(archive.period),
            ),
        )


_N = NOT_SPECIFIED
_NO_LIMITS = AlarmLimits(_N, _N, _N, _N, _N, _N)
_FORMATS = {DataType.DOUBLE: "%6.2f", DataType.FLOAT: "%6.2f", DataType.STRING: "%s", DataType.ENUM: "%s"}


def check_text(text: str | tuple[str, ...], name: str) -> None:
    """Check a text, or several, before a client asks for it.

    :param name: its name in the error
    :raises ConfigError: it cannot be sent
    """
    for one in (text,) if isinstance(text, str) else text:
        try:
            CdrWriter(True).text(one)
        except CdrError as error:
            raise ConfigError(f"{name}: {error}") from None


def check_device_name(name: str) -> str:
    """Check a device name; returns it in lower case.

    :raises ConfigError: the name is no ``domain/family/member``
    """
    parts = name.split("/")
    if len(parts) != 3 or not all(map(is_publishable, parts)):
        raise ConfigError(f"invalid device name: {name!r:.100}; it must be domain/family/member")
    return name.lower()


@dataclass(frozen=True, slots=True)
class Device:
    """Declaration of one device. Every device has the attributes State and Status; they are not declared.

    :ivar name: ``domain/family/member``, in any case
    :raises ConfigError: the name is invalid, or two attributes have the same name
    """

    name: str
    attributes: Sequence[Attribute] = ()
    dev_class: str = "EventSource"
    description: str = "A device of an event source"

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(self.attributes))
        check_device_name(self.name)
        check_text(self.dev_class, f"{self.name}: class")
        check_text(self.description, f"{self.name}: description")
        keys = [attribute.key for attribute in self.attributes]
        twice = {key for key in keys if keys.count(key) > 1 or key in ("state", "status")}
        if twice:
            raise ConfigError(f"{self.name}: attributes declared twice: {', '.join(sorted(twice))}")
