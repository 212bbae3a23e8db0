"""The data dictionary of a market data network: names and types of fields by their numbers.

A file has a line ``fid|name|type`` an entry, the type as a number or a name; the rest of the line, and other lines, are
ignored. A message has one field an entry: its name, fid and type describe the entry, its value is unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mama_spark.contracts.errors import ConfigError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field, MamaMsg, reserved_field
from mama_spark.mama.messages.status import MsgType
from mama_spark.mama.messages.values import MamaPrice, MamaTime

MAX_ENTRIES = 65_536
DICTIONARY_SOURCE = "WOMBAT"  #: where real programs ask for the dictionary, whatever source they subscribe to
_TYPES: dict[str, FieldType] = {**{t.name: t for t in FieldType}, "BOOLEAN": FieldType.BOOL}
_BY_NUMBER = {int(t): t for t in FieldType}
_EMPTY: dict[FieldType, Any] = {
    FieldType.MSG: MamaMsg(),
    FieldType.OPAQUE: b"",
    FieldType.COLLECTION: b"",
    FieldType.STRING: "",
    FieldType.BOOL: False,
    FieldType.CHAR: "\0",
    FieldType.F32: 0.0,
    FieldType.F64: 0.0,
    FieldType.TIME: MamaTime(0),
    FieldType.PRICE: MamaPrice(0.0),
}


class DictionaryEntry(NamedTuple):
    fid: int
    name: str
    type: FieldType


def type_named(text: str) -> FieldType | None:
    """The type of this name or number; None = there is none."""
    text = text.strip().upper()
    return _BY_NUMBER.get(int(text)) if text.isascii() and text.isdecimal() else _TYPES.get(text)


def parse_dictionary(text: str) -> list[DictionaryEntry]:
    """The entries of a file, in order.

    :raises ConfigError: a line with two ``|`` is no entry; names it. Or there is no entry at all
    """
    entries: list[DictionaryEntry] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.strip().split("|")
        if len(parts) < 3 or line.lstrip().startswith("#"):
            continue
        fid, name, kind = parts[0].strip(), parts[1].strip(), type_named(parts[2])
        if not (fid.isascii() and fid.isdecimal() and 0 < int(fid) < 65_536 and name) or kind is None:
            raise ConfigError(f"line {number} of the dictionary is not fid|name|type: {line.strip()[:80]!r}")
        entries.append(DictionaryEntry(int(fid), name, kind))
    if not entries:
        raise ConfigError("the dictionary has no line fid|name|type")
    if len(entries) > MAX_ENTRIES:
        raise ConfigError(f"the dictionary has {len(entries)} entries, the most is {MAX_ENTRIES}")
    return entries


def dictionary_message(entries: Iterable[DictionaryEntry]) -> MamaMsg:
    """The answer to a request for the dictionary (section 8 of the observations of real programs)."""
    fields = [reserved_field("MdMsgType", FieldType.U8, int(MsgType.INITIAL))]
    fields += [Field(e.name, e.fid, e.type, _EMPTY.get(e.type, () if e.type.element is not None else 0))
               for e in entries]  # fmt: skip
    return MamaMsg(fields)


def dictionary_of(msg: MamaMsg) -> list[DictionaryEntry]:
    """The entries of an answer, its stamps included. The first field of a fid counts."""
    entries = {f.fid: DictionaryEntry(f.fid, f.name, f.type) for f in reversed(msg.fields) if f.fid and f.name}
    return [entries[fid] for fid in sorted(entries)]


def by_name(entries: Sequence[DictionaryEntry]) -> Mapping[str, DictionaryEntry]:
    """The entries by their names; the first of a name counts."""
    return {entry.name: entry for entry in reversed(entries)}


def dictionary_of_file(path: str | Path, what: str) -> list[DictionaryEntry]:
    """The entries of a file, in order.

    :param what: names the setting that gave the path, for the error
    :raises ConfigError: it cannot be read, or is no dictionary
    """
    try:
        return parse_dictionary(Path(path).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ConfigError) as e:
        raise ConfigError(f"{what} {path}: {getattr(e, 'strerror', None) or e}") from e
