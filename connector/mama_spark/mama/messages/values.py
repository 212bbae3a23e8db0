"""Values of the fields of a MAMA message: two value classes, and one check for each field type. Pure.

A check converts the caller's value to an immutable Python value in the range of the wire. Every value that passes can
be encoded, so a bad value raises when it is added, not when it is sent.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from .field_types import STRUCT_CODES, FieldType
from .status import Status, StatusError

HAS_DATE, HAS_TIME, NO_TIMEZONE = 1, 2, 4  #: hints of a :class:`MamaTime`
SECONDS, DECISECONDS, CENTISECONDS, MILLISECONDS, MICROSECONDS, NANOSECONDS = 0, 1, 2, 3, 6, 9  #: its precision
DAYS, MINUTES, UNKNOWN_PRECISION = 10, 12, 15

PRICE_VALID = 0x20  #: hint of a :class:`MamaPrice`; the low five bits are its precision
INTEGER_PRECISION = 16  #: 1..15 = decimals, 17..30 = fractions, 0 = unknown


@dataclass(frozen=True, slots=True)
class MamaTime:
    """A time as encoded in a message.

    :ivar seconds: since 1970 UTC, 64 bits signed (the C library reads 32 bits unsigned: it misreads times before 1970)
    :ivar hints: :data:`HAS_DATE` and so on
    :ivar precision: significant digits: :data:`MICROSECONDS` and so on
    :ivar timezone: at most 14 bytes of Latin-1; OpenMAMA always writes it empty
    """

    seconds: int
    nanos: int = 0
    hints: int = HAS_DATE | HAS_TIME
    precision: int = MICROSECONDS
    timezone: str = ""

    def __post_init__(self) -> None:
        within = -(2**63) <= self.seconds < 2**63 and 0 <= self.nanos < 2**32
        if not (within and 0 <= self.hints < 256 and 0 <= self.precision < 256):
            raise StatusError(Status.INVALID_ARG, f"TIME out of range: {self.seconds}.{self.nanos:09d}")
        _padded(self.timezone, 14, "timezone")

    @classmethod
    def from_us(cls, us: int) -> Self:
        """The time of microseconds since 1970 UTC."""
        seconds, rest = divmod(us, 1_000_000)
        return cls(seconds, rest * 1000)

    @property
    def us(self) -> int:
        """Microseconds since 1970 UTC, rounded down."""
        return self.seconds * 1_000_000 + self.nanos // 1000


@dataclass(frozen=True, slots=True)
class MamaPrice:
    """A price as encoded in a message.

    :ivar hints: :data:`PRICE_VALID`, and the precision in the low bits
    :ivar currency: at most 3 bytes of Latin-1
    """

    value: float
    hints: int = PRICE_VALID
    currency: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.hints < 256:
            raise StatusError(Status.INVALID_ARG, f"PRICE hints out of range: {self.hints}")
        _padded(self.currency, 3, "currency")

    @property
    def valid(self) -> bool:
        return bool(self.hints & PRICE_VALID)

    @property
    def precision(self) -> int:
        return self.hints & 0x1F


def unchecked_time(seconds: int, nanos: int, hints: int, precision: int, timezone: str) -> MamaTime:
    """A :class:`MamaTime` of values in their ranges, as the layout of a message keeps them; in half the time."""
    made = _new(MamaTime)
    _set_seconds(made, seconds)
    _set_nanos(made, nanos)
    _set_time_hints(made, hints)
    _set_precision(made, precision)
    _set_timezone(made, timezone)
    return made


def unchecked_price(value: float, hints: int, currency: str) -> MamaPrice:
    made = _new(MamaPrice)
    _set_value(made, value)
    _set_price_hints(made, hints)
    _set_currency(made, currency)
    return made


_new = object.__new__
_set_seconds, _set_nanos, _set_time_hints, _set_precision, _set_timezone = (
    MamaTime.__dict__[name].__set__ for name in MamaTime.__slots__
)
_set_value, _set_price_hints, _set_currency = (MamaPrice.__dict__[name].__set__ for name in MamaPrice.__slots__)


def _padded(text: str, most: int, what: str) -> None:
    if text and (len(text) > most or "\0" in text or max(text) > "\xff"):
        raise StatusError(Status.INVALID_ARG, f"{what} must be at most {most} characters of Latin-1, got {text!r}")


Check = Callable[[Any], Any]


def _wrong(expected: str, value: object) -> StatusError:
    return StatusError(Status.WRONG_FIELD_TYPE, f"expected {expected}, got {type(value).__name__}")


def _integer(bits: int, signed: bool) -> Check:
    lo, hi = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def check(value: Any) -> int:
        try:
            number = int(operator.index(value))
        except TypeError:
            raise _wrong("an integer", value) from None
        if not lo <= number <= hi:
            raise StatusError(Status.INVALID_ARG, f"{number} is not from {lo} to {hi}")
        return number

    return check


def _bool(value: Any) -> bool:
    if isinstance(value, str | bytes) or value not in (True, False):
        raise _wrong("a boolean", value)
    return bool(value)


def _char(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value > "\xff":
        raise _wrong("one character of Latin-1", value)
    return value


def _float(value: Any) -> float:
    if isinstance(value, str | bytes | bytearray):
        raise _wrong("a number", value)
    try:
        return float(value)
    except (TypeError, OverflowError):
        raise _wrong("a number", value) from None


def _single(value: Any) -> float:
    """Rounded to 32 bits, so that the decoded value equals the one in the message."""
    try:
        packed = struct.pack("<f", _float(value))
    except OverflowError:
        raise StatusError(Status.INVALID_ARG, f"{value} is too large for F32") from None
    return float(struct.unpack("<f", packed)[0])


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("a string", value)
    if "\0" in value:
        raise StatusError(Status.INVALID_ARG, "a STRING ends at its first NUL and cannot hold one")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise StatusError(Status.INVALID_ARG, f"{value!r} is not UTF-8") from None
    return value


def _opaque(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong("bytes", value)
    return bytes(value)


def _instance(kind: type) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _wrong(f"a {kind.__name__}", value)
        return value

    return check


def _vector(element: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise _wrong("a sequence", value)
        return tuple(map(element, value))

    return check


def _strings(value: Any) -> tuple[str, ...]:
    strings: tuple[str, ...] = _vector(_string)(value)
    if strings and not strings[-1]:
        # decoders drop empty strings at the end: the C library leaves stale NULs there when it shortens a vector
        raise StatusError(Status.INVALID_ARG, "a VECTOR_STRING cannot end with an empty string")
    return strings


_SCALARS: dict[FieldType, Check] = {
    FieldType.BOOL: _bool,
    FieldType.CHAR: _char,
    **{
        kind: _integer(8 * struct.calcsize(f"<{code}"), code.islower())
        for kind, code in STRUCT_CODES.items()
        if code in "bBhHiIqQ"
    },
    FieldType.F32: _single,
    FieldType.F64: _float,
    FieldType.TIME: _instance(MamaTime),
    FieldType.PRICE: _instance(MamaPrice),
}

#: The check of each type; :mod:`mama_spark.mama.messages.msg` checks nested messages.
CHECKS: dict[FieldType, Check] = {
    **_SCALARS,
    **{scalar.vector: _vector(check) for scalar, check in _SCALARS.items() if scalar is not FieldType.QUANTITY},
    FieldType.STRING: _string,
    FieldType.VECTOR_STRING: _strings,
    FieldType.OPAQUE: _opaque,
    FieldType.COLLECTION: _opaque,
}
