"""Declarations of an event source's devices, attributes, and event criteria (TG-03, TG-06). Pure.

:class:`~mama_spark.services.tango_server.event_source.TangoEventSource` is made of them, and clients get them as the
configuration of attributes. They contain no values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from mama_spark.errors import ConfigError, SchemaError
from mama_spark.tango.types import (
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

NOT_SPECIFIED = "Not specified"  #: Tango's text for a property without a value
MAX_X, MAX_Y = 1_000_000, 10_000  #: default dimensions of spectra and images
_NAME = re.compile(r"[^\s/#.:\x00-\x1f]+")
Threshold = float | tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Criteria:
    """Event criteria: which changes of a value are sent as events; without thresholds, every change is.

    :ivar abs_change: least difference to the value sent last; a pair: (downwards, negative; upwards)
    :ivar rel_change: likewise, percent of the value sent last
    :ivar period: of archive events: milliseconds after which the value is sent in any case
    :ivar detect: they also hold for events that code pushes; else only for :meth:`TangoEventSource.set`
    """

    abs_change: Threshold = None
    rel_change: Threshold = None
    period: int | None = None
    detect: bool = False

    def __post_init__(self) -> None:
        for limits in (_pair(self.abs_change), _pair(self.rel_change)):
            if limits is not None and not (limits[0] < 0 < limits[1]):
                raise ConfigError(f"thresholds must be above 0, or (below 0, above 0): {limits}")
        if self.period is not None and self.period <= 0:
            raise ConfigError(f"a period of {self.period} ms")

    @property
    def absolute(self) -> tuple[float, float] | None:
        return _pair(self.abs_change)

    @property
    def relative(self) -> tuple[float, float] | None:
        return _pair(self.rel_change)

    @property
    def empty(self) -> bool:
        """There are no criteria."""
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

    :ivar settable: it has a set value; clients cannot write it
    :ivar change: criteria of change events; None: no such events
    :ivar archive: criteria of archive events; None: no such events
    :ivar alarm: send alarm events when the quality changes to or from ALARM or WARNING
    :ivar period: milliseconds between periodic events; None: no such events
    :ivar data_ready: data_ready events may be pushed
    :ivar enum_labels: of an ENUM
    :raises ConfigError: no attribute can have this name, type or period
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
        if not _NAME.fullmatch(self.name) or not self.name.isascii():
            raise ConfigError(f"no name of an attribute: {self.name!r:.100}")
        if self.format is Format.UNKNOWN or self.data_type not in KIND_OF:
            raise ConfigError(f"{self.name}: no attribute is {self.format!r} of {self.data_type!r}")
        if self.data_type is DataType.ENCODED and self.format is not Format.SCALAR:
            raise ConfigError(f"{self.name}: there are no spectra and images of DevEncoded")
        if self.period is not None and self.period <= 0:
            raise ConfigError(f"{self.name}: a period of {self.period} ms")

    @property
    def key(self) -> str:
        """Its name in topics."""
        return self.name.lower()

    @property
    def kind(self) -> ValueKind:
        """Kind of its values in messages. Only the attribute State has a single state instead of a sequence."""
        if self.data_type is DataType.STATE and self.format is Format.SCALAR and self.key == "state":
            return ValueKind.DEVICE_STATE
        return KIND_OF[self.data_type]

    @property
    def numeric(self) -> bool:
        """Its values can be compared with thresholds."""
        return self.kind in DTYPES and self.data_type not in (DataType.BOOLEAN, DataType.ENUM)

    def config(self) -> AttributeConfig:
        """The configuration for clients (ATT_CONF_DATA, TG-13)."""
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


def check_device_name(name: str) -> str:
    """Check a device name; returns it in lower case.

    :raises ConfigError: it is not ``domain/family/member``
    """
    parts = name.split("/")
    if len(parts) != 3 or not all(_NAME.fullmatch(part) for part in parts) or not name.isascii():
        raise ConfigError(f"no name of a device: {name!r:.100}")
    return name.lower()


@dataclass(frozen=True, slots=True)
class Device:
    """Declaration of one device. Attributes State and Status exist without being declared.

    :ivar name: ``domain/family/member``, in any case
    :raises ConfigError: the name is invalid, or two attributes have one name
    """

    name: str
    attributes: tuple[Attribute, ...] = ()
    dev_class: str = "EventSource"
    description: str = "A device of an event source"

    def __init__(
        self,
        name: str,
        attributes: Iterable[Attribute] = (),
        dev_class: str = "EventSource",
        description: str = "A device of an event source",
    ) -> None:
        check_device_name(name)
        found = tuple(attributes)
        keys = [attribute.key for attribute in found]
        twice = {key for key in keys if keys.count(key) > 1 or key in ("state", "status")}
        if twice:
            raise ConfigError(f"{name}: attributes declared twice: {', '.join(sorted(twice))}")
        for field, value in (
            ("name", name), ("attributes", found), ("dev_class", dev_class), ("description", description)
        ):  # fmt: skip
            object.__setattr__(self, field, value)

    @classmethod
    def from_schema(cls, name: str, schema: pa.Schema, **attributes: Attribute) -> Device:
        """A device whose attributes are the columns of an Arrow schema (of a DataFrame: ``toArrow().schema``):
        numbers, booleans, text, binary (DevEncoded), lists (spectra) and lists of lists (images).

        :param attributes: declarations of columns, instead of those made from their types
        :raises SchemaError: no attribute has the type of a column
        """
        return cls(name, [attributes.get(field.name) or attribute_of(field) for field in schema])


#: Arrow type -> Tango type
_TYPES: dict[pa.DataType, DataType] = {
    pa.bool_(): DataType.BOOLEAN,
    pa.int8(): DataType.SHORT,
    pa.int16(): DataType.SHORT,
    pa.int32(): DataType.LONG,
    pa.int64(): DataType.LONG64,
    pa.uint8(): DataType.UCHAR,
    pa.uint16(): DataType.USHORT,
    pa.uint32(): DataType.ULONG,
    pa.uint64(): DataType.ULONG64,
    pa.float32(): DataType.FLOAT,
    pa.float64(): DataType.DOUBLE,
    pa.string(): DataType.STRING,
    pa.large_string(): DataType.STRING,
    pa.binary(): DataType.ENCODED,
    pa.large_binary(): DataType.ENCODED,
}


def attribute_of(field: pa.Field) -> Attribute:
    """Declare an attribute for a column.

    :raises SchemaError: no attribute has its type
    """
    kind, depth = field.type, 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    if kind not in _TYPES or depth > 2 or (depth and _TYPES[kind] is DataType.ENCODED):
        raise SchemaError(f"column {field.name}: no attribute of Tango holds {field.type}")
    return Attribute(field.name, _TYPES[kind], Format(depth))
