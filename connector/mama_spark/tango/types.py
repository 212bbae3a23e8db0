"""Types of Tango's IDL: enumerations with their numbers, values, configurations, and other data of events. Pure.

Times are nanoseconds since the epoch. Numbers of a value are numpy arrays in native byte order. Names of fields are
those of the IDL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class DataType(IntEnum):
    """CmdArgType, as far as attributes have it."""

    BOOLEAN = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    USHORT = 6
    ULONG = 7
    STRING = 8
    STATE = 19
    UCHAR = 22
    LONG64 = 23
    ULONG64 = 24
    ENCODED = 28
    ENUM = 29


class Quality(IntEnum):
    """AttrQuality"""

    VALID = 0
    INVALID = 1
    ALARM = 2
    CHANGING = 3
    WARNING = 4


class Format(IntEnum):
    """AttrDataFormat"""

    SCALAR = 0
    SPECTRUM = 1
    IMAGE = 2
    UNKNOWN = 3


class Severity(IntEnum):
    """ErrSeverity"""

    WARN = 0
    ERR = 1
    PANIC = 2


class DevState(IntEnum):
    """DevState"""

    ON = 0
    OFF = 1
    CLOSE = 2
    OPEN = 3
    INSERT = 4
    EXTRACT = 5
    MOVING = 6
    STANDBY = 7
    FAULT = 8
    INIT = 9
    RUNNING = 10
    ALARM = 11
    DISABLE = 12
    UNKNOWN = 13


class Writable(IntEnum):
    """AttrWriteType"""

    READ = 0
    READ_WITH_WRITE = 1
    WRITE = 2
    READ_WRITE = 3
    UNKNOWN = 4


class EventType(IntEnum):
    """EVENT_TYPE of RFC 12, and DATA_READY and ALARM, which it does not list (TG-19). Heartbeats are not included."""

    CHANGE = 0
    QUALITY = 1
    PERIODIC = 2
    ARCHIVE = 3
    USER = 4
    ATTR_CONF = 5
    DATA_READY = 6
    INTERFACE_CHANGE = 7
    PIPE = 8
    ALARM = 9

    @property
    def wire_name(self) -> str:
        """Its name in topics and subscriptions: ``change``, ``user_event``, ``intr_change``."""
        return _WIRE_NAMES[self]

    @property
    def carries_value(self) -> bool:
        return self in _VALUE_EVENTS


_OTHER_NAMES = {"USER": "user_event", "INTERFACE_CHANGE": "intr_change"}
_WIRE_NAMES = {event: _OTHER_NAMES.get(event.name, event.name.lower()) for event in EventType}
EVENT_NAMES: dict[str, EventType] = {name: event for event, name in _WIRE_NAMES.items()}
_VALUE_EVENTS = frozenset(
    (EventType.CHANGE, EventType.QUALITY, EventType.PERIODIC, EventType.ARCHIVE, EventType.USER, EventType.ALARM)
)


class ValueKind(IntEnum):
    """Discriminator of AttrValUnion. A DevEnum is a SHORT."""

    BOOL = 0
    SHORT = 1
    LONG = 2
    LONG64 = 3
    FLOAT = 4
    DOUBLE = 5
    UCHAR = 6
    USHORT = 7
    ULONG = 8
    ULONG64 = 9
    STRING = 10
    STATE = 11  #: a sequence of states
    DEVICE_STATE = 12  #: one state, without a sequence around it: the attribute State
    ENCODED = 13
    NO_DATA = 14


#: Of the kinds that are numbers: letter of the module ``struct``, and numpy type.
_NUMBERS = {
    ValueKind.BOOL: ("B", "?"), ValueKind.SHORT: ("h", "i2"), ValueKind.LONG: ("i", "i4"),
    ValueKind.LONG64: ("q", "i8"), ValueKind.FLOAT: ("f", "f4"), ValueKind.DOUBLE: ("d", "f8"),
    ValueKind.UCHAR: ("B", "u1"), ValueKind.USHORT: ("H", "u2"), ValueKind.ULONG: ("I", "u4"),
    ValueKind.ULONG64: ("Q", "u8"),
}  # fmt: skip
STRUCT_CODES: dict[ValueKind, str] = {kind: code for kind, (code, _) in _NUMBERS.items()}
DTYPES: dict[ValueKind, np.dtype[Any]] = {kind: np.dtype(name) for kind, (_, name) in _NUMBERS.items()}
_OTHER_KINDS = {DataType.BOOLEAN: ValueKind.BOOL, DataType.ENUM: ValueKind.SHORT}
#: data type -> kind of its values; the attribute State has DEVICE_STATE instead
KIND_OF: dict[DataType, ValueKind] = {
    kind: _OTHER_KINDS[kind] if kind in _OTHER_KINDS else ValueKind[kind.name] for kind in DataType
}


class DevError(NamedTuple):
    """One entry of a DevFailed's stack (EVENT_ERROR, TG-18)."""

    reason: str
    severity: Severity
    desc: str
    origin: str


class Encoded(NamedTuple):
    """DevEncoded: bytes, and a word for what they are."""

    format: str
    data: bytes


class Dim(NamedTuple):
    """Columns and rows; a spectrum has ``y`` 0, a scalar is (1, 0)."""

    x: int
    y: int

    @property
    def size(self) -> int:
        return self.x * self.y if self.y else self.x


NO_DIM, ONE = Dim(0, 0), Dim(1, 0)

#: Numbers, strings, states, encoded; one state; nothing.
Elements = npt.NDArray[Any] | tuple[str, ...] | tuple[DevState, ...] | tuple[Encoded, ...]
Content = Elements | DevState | None


def same_content(one: Content, other: Content) -> bool:
    """Whether both are equal when encoded: a NaN equals itself, and 0 does not equal False."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    return type(one) is type(other) and one == other


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    rest = (getattr(one, name) == getattr(other, name) for name in one.__slots__ if name != "content")
    return all(rest) and same_content(one.content, other.content)


@dataclass(frozen=True, slots=True, eq=False)
class AttributeValue:
    """A value of an attribute, AttributeValue_5 and older (ATTRIBUTE_DATA, TG-17).

    :ivar content: the read value, followed by the set value, by :attr:`kind`: a numpy array, a tuple, one state, or
        None for NO_DATA
    :ivar data_type: None in AttributeValue_4 and _3; an unknown number stays a number
    :ivar format: UNKNOWN in AttributeValue_3
    :ivar errors: why the attribute could not be read
    """

    name: str
    kind: ValueKind
    content: Content
    time: int
    quality: Quality = Quality.VALID
    format: Format = Format.SCALAR
    data_type: int | None = None
    r_dim: Dim = ONE
    w_dim: Dim = NO_DIM
    errors: tuple[DevError, ...] = ()

    @property
    def read(self) -> Content:
        """The read value; of an image, its rows one after the other."""
        if self.content is None or isinstance(self.content, DevState):
            return self.content
        return self.content[: self.r_dim.size]

    @property
    def written(self) -> Content:
        """The set value; None if the attribute has none."""
        if self.content is None or isinstance(self.content, DevState) or not self.w_dim.size:
            return None
        start = self.r_dim.size
        return self.content[start : start + self.w_dim.size]

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """AttributeAlarm: Tango's texts, ``Not specified`` included."""

    min_alarm: str = ""
    max_alarm: str = ""
    min_warning: str = ""
    max_warning: str = ""
    delta_t: str = ""
    delta_val: str = ""
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeCriteria:
    """ChangeEventProp"""

    rel_change: str = ""
    abs_change: str = ""
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeriodicCriteria:
    """PeriodicEventProp; the period in milliseconds."""

    period: str = ""
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveCriteria:
    """ArchiveEventProp"""

    rel_change: str = ""
    abs_change: str = ""
    period: str = ""
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttributeConfig:
    """Properties of an attribute, AttributeConfig_5 (ATT_CONF_DATA, TG-13). AttributeConfig_3 has no ``memorized``,
    ``mem_init``, ``root_attr_name`` and ``enum_labels``, which keep their defaults."""

    name: str
    writable: Writable = Writable.READ
    data_format: Format = Format.SCALAR
    data_type: int = DataType.DOUBLE
    memorized: bool = False
    mem_init: bool = False
    max_dim_x: int = 1
    max_dim_y: int = 0
    description: str = ""
    label: str = ""
    unit: str = ""
    standard_unit: str = ""
    display_unit: str = ""
    format: str = ""
    min_value: str = ""
    max_value: str = ""
    writable_attr_name: str = ""
    level: int = 0  #: DispLevel: 0 operator, 1 expert, 2 developer
    root_attr_name: str = ""
    enum_labels: tuple[str, ...] = ()
    att_alarm: AlarmLimits = field(default_factory=AlarmLimits)
    ch_event: ChangeCriteria = field(default_factory=ChangeCriteria)
    per_event: PeriodicCriteria = field(default_factory=PeriodicCriteria)
    arch_event: ArchiveCriteria = field(default_factory=ArchiveCriteria)
    extensions: tuple[str, ...] = ()
    sys_extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """DevCmdInfo_2"""

    cmd_name: str
    level: int = 0
    cmd_tag: int = 0
    in_type: int = 0
    out_type: int = 0
    in_type_desc: str = ""
    out_type_desc: str = ""


@dataclass(frozen=True, slots=True)
class InterfaceChange:
    """Commands and attributes that a device now has (INTERFACE_CHANGE_DATA, TG-16)."""

    dev_started: bool
    cmds: tuple[CommandInfo, ...] = ()
    atts: tuple[AttributeConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class DataReady:
    """A device announces that an attribute can be read (DATA_READY_DATA, TG-15). ``ctr`` is its own, signed."""

    name: str
    data_type: int
    ctr: int


@dataclass(frozen=True, slots=True, eq=False)
class PipeElement:
    """One entry of a blob: a value, or a blob of its own in ``inner`` (then the kind is NO_DATA)."""

    name: str
    kind: ValueKind
    content: Content
    inner: tuple[PipeElement, ...] = ()
    inner_blob_name: str = ""

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class PipeBlob:
    """DevPipeBlob"""

    name: str
    elements: tuple[PipeElement, ...] = ()


@dataclass(frozen=True, slots=True)
class PipeData:
    """DevPipeData (PIPE_DATA, TG-14; the wire has no size)."""

    name: str
    time: int
    blob: PipeBlob
