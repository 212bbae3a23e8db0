"""A MAMA message: fields in order, each with a name, a number (FID), a type and a value. Pure."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .field_types import FieldType
from .status import RESERVED, Status, StatusError
from .values import CHECKS, MamaPrice, MamaTime

__all__ = ["MAX_DEPTH", "Field", "FieldType", "MamaMsg", "MamaPrice", "MamaTime"]

MAX_DEPTH = 16  #: levels of messages within messages, the outermost included


class Field(NamedTuple):
    """One field. Scalars are Python's own; vectors are tuples; CHAR is one character of Latin-1."""

    name: str  #: may be empty if there is a fid
    fid: int  #: 16 bits; 0 = none
    type: FieldType
    value: Any


class MamaMsg:
    """Ordered fields, found by name, by fid, or by both.

    A field must have both where both are given: fids of different programs collide. Of equal names the first counts.
    Values are checked when they are added, and messages within messages are copied, as OpenMAMA does.
    """

    __slots__ = ("fields",)
    __hash__ = None  # type: ignore[assignment]  # it can change

    def __init__(self, fields: list[Field] | None = None) -> None:
        """Make a message.

        :param fields: its list of fields, unchecked, for decoders; other callers use :meth:`add`
        """
        self.fields: list[Field] = [] if fields is None else fields

    def add(self, field_type: FieldType, name: str, fid: int, value: Any) -> None:
        """Append a field.

        :raises StatusError: INVALID_ARG for a field without name and fid, a fid beyond 16 bits, a value out of range;
            WRONG_FIELD_TYPE for a value of another type
        """
        self.fields.append(_field(field_type, name, fid, value))

    def update(self, field_type: FieldType, name: str, fid: int, value: Any) -> None:
        """Replace type and value of the first field of this name and fid (either may be left empty), else append.

        The type changes with the value, because C programs misread a narrow value under a wide type.

        :raises StatusError: as :meth:`add`
        """
        made = _field(field_type, name, fid, value)
        for i, old in enumerate(self.fields):
            if (not name or old.name == name) and (not fid or old.fid == fid):
                self.fields[i] = made._replace(name=old.name, fid=old.fid)
                return
        self.fields.append(made)

    def field(self, name: str | None = None, fid: int | None = None) -> Field | None:
        """The first field of this name, this fid, or both; None if there is none.

        :raises StatusError: INVALID_ARG if neither is given
        """
        if not name and not fid:
            raise StatusError(Status.INVALID_ARG, "a field is found by its name, its fid, or both")
        for f in self.fields:
            if (not name or f.name == name) and (not fid or f.fid == fid):
                return f
        return None

    def get(self, name: str | None = None, fid: int | None = None, default: Any = None) -> Any:
        """Value of :meth:`field`, or ``default``."""
        found = self.field(name, fid)
        return default if found is None else found.value

    def reserved(self, name: str, default: Any = None) -> Any:
        """Value of a field of :data:`~mama_spark.mama.messages.status.RESERVED`, or ``default``."""
        return self.get(name, RESERVED[name].fid, default)

    def copy(self) -> MamaMsg:
        """A deep copy."""
        return _copy(self, MAX_DEPTH)

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON: ``{"fields": [{type, type_number, fid, name, value}, ...]}``.

        Bytes, and characters beyond printable ASCII, are ``{"$hex": ...}``; floats that JSON cannot hold are ``"nan"``,
        ``"inf"``, ``"-inf"``; a message within is its list of fields.
        """
        return {"fields": _plain(self)}

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __eq__(self, other: object) -> bool:
        return self.fields == other.fields if isinstance(other, MamaMsg) else NotImplemented

    @reprlib.recursive_repr("<MamaMsg ...>")
    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}[{f.fid}] {f.type.name} {reprlib.repr(f.value)}" for f in self.fields)
        return f"<MamaMsg {shown}>" if shown else "<MamaMsg empty>"


def reserved_field(name: str, kind: FieldType, value: Any) -> Field:
    """A field of :data:`~mama_spark.mama.messages.status.RESERVED`; the value is not checked."""
    return Field(name, RESERVED[name].fid, kind, value)


def _field(field_type: FieldType, name: str, fid: int, value: Any) -> Field:
    name = name or ""
    if not isinstance(name, str) or "\0" in name or not (name.isascii() or _is_utf8(name)):
        raise StatusError(Status.INVALID_ARG, f"a field's name is UTF-8 without NUL, got {name!r}")
    if not isinstance(fid, int) or not 0 <= fid <= 0xFFFF:
        raise StatusError(Status.INVALID_ARG, f"a fid is from 0 to 65535, got {fid!r}")
    if not name and not fid:
        raise StatusError(Status.INVALID_ARG, "a field needs a name or a fid")
    check = CHECKS.get(field_type) or _MESSAGES.get(field_type)
    if check is None:
        raise StatusError(Status.WRONG_FIELD_TYPE, f"{field_type!r} is no type of a field")
    try:
        return Field(name, fid, FieldType(field_type), check(value))
    except StatusError as e:
        raise StatusError(e.status, f"field {name}[{fid}] {FieldType(field_type).name}: {e.info}") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _copy(msg: MamaMsg, levels: int) -> MamaMsg:
    if not isinstance(msg, MamaMsg):
        raise StatusError(Status.WRONG_FIELD_TYPE, f"expected a MamaMsg, got {type(msg).__name__}")
    if levels <= 0:
        raise StatusError(Status.INVALID_ARG, f"messages within messages go at most {MAX_DEPTH} levels deep")
    fields = msg.fields.copy()
    for i, f in enumerate(fields):
        if f.type is FieldType.MSG:
            fields[i] = f._replace(value=_copy(f.value, levels - 1))
        elif f.type is FieldType.VECTOR_MSG:
            fields[i] = f._replace(value=tuple(_copy(m, levels - 1) for m in f.value))
    return MamaMsg(fields)


def _copies(value: Any) -> tuple[MamaMsg, ...]:
    if isinstance(value, MamaMsg | str | bytes):
        raise StatusError(Status.WRONG_FIELD_TYPE, "expected a sequence of messages")
    return tuple(_copy(m, MAX_DEPTH - 1) for m in value)


_MESSAGES: dict[FieldType, Callable[[Any], Any]] = {
    FieldType.MSG: lambda value: _copy(value, MAX_DEPTH - 1),
    FieldType.VECTOR_MSG: _copies,
}


def _plain(value: Any, kind: FieldType | None = None) -> Any:
    if isinstance(value, MamaMsg):
        return [
            {"type": f.type.name, "type_number": int(f.type), "fid": f.fid, "name": f.name}
            | {"value": _plain(f.value, f.type)}
            for f in value
        ]
    if isinstance(value, tuple):
        return [_plain(element, kind) for element in value]
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, MamaTime):
        return {
            "hints": value.hints, "seconds": value.seconds, "nanoseconds": value.nanos,
            "precision": value.precision, "timezone": value.timezone,
        }  # fmt: skip
    if isinstance(value, MamaPrice):
        return {
            "hints": value.hints, "valid": value.valid, "precision": value.precision,
            "value": _plain(value.value), "currency": value.currency,
        }  # fmt: skip
    if kind in (FieldType.CHAR, FieldType.VECTOR_CHAR) and not "\x20" <= value <= "\x7e":
        return {"$hex": value.encode("latin-1").hex()}
    return value
