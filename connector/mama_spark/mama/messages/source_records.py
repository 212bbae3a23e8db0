"""Source records: how a source describes itself, one message per source (SD-04..SD-12). Pure.

Names and FIDs of the fields come from ``mama.properties`` (SD-13, SD-35..SD-48), because shipped programs use the
default FIDs 10001, 10002 and 10004 for other fields. A field is therefore recognised by FID **and** name, and a field
that has only one of them is reported as a collision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, Self

from mama_spark.contracts.errors import ConfigError, MamaError

from .msg import Field, FieldType, MamaMsg

#: Topic of source discovery requests (SD-17); begins like OpenMAMA's other reserved roots.
MAMA_SOURCE_DISCOVERY_TOPIC = "_MAMA_SOURCE_DISCOVERY"

ONLINE, OFFLINE = "ONLINE", "OFFLINE"  #: source state (SD-08)
OK, SUSPECT = "OK", "SUSPECT"  #: data state (SD-09)
BEST, DELAYED, FILTERED, UNSPECIFIED = (
    "BEST",
    "DELAYED",
    "FILTERED",
    "UNSPECIFIED",
)  #: quality of service (SD-10, SD-11)
#: Bytes of a record or event that is read. Records have a few hundred; larger ones are rows with the reason.
MAX_RECORD_BYTES = 256 << 10
UNKNOWN = "UNKNOWN"  #: value for a dictionary that is not named (SD-12)

PREFIX = "mama.sourcediscovery."


class BadSourceRecord(MamaError):
    """A message that is no valid source record or event; the text is the reason."""


class FieldProperties(Protocol):
    """Input of :meth:`SourceFields.from_properties`, e.g. :class:`~mama_spark.mama.properties.Properties`."""

    @property
    def path(self) -> str: ...

    def get(self, key: str, /) -> str | None: ...

    def where(self, key: str) -> str:
        """File and line of a key, for messages."""
        ...


class FieldId(NamedTuple):
    name: str
    fid: int


@dataclass(frozen=True, slots=True)
class SourceFields:
    """Names and FIDs of the seven fields of a source record. An attribute is named like its two properties.

    :raises ConfigError: for an empty name, a fid that is not from 1 to 65535, and duplicate names or fids
    """

    source: FieldId = field(default=FieldId("SourceName", 10001))
    sourceid: FieldId = field(default=FieldId("SourceID", 10002))
    sourcestate: FieldId = field(default=FieldId("SourceState", 10003))
    sourcedatastate: FieldId = field(default=FieldId("SourceDataState", 10004))
    sourceqosrate: FieldId = field(default=FieldId("SourceQoSRate", 10005))
    sourceqostimeliness: FieldId = field(default=FieldId("SourceQoSTimeliness", 10006))
    sourcedatadict: FieldId = field(default=FieldId("SourceDataDict", 10007))
    by_name: Mapping[str, str] = field(init=False, repr=False, compare=False)  #: name -> word
    by_fid: Mapping[int, str] = field(init=False, repr=False, compare=False)  #: fid -> word

    def __post_init__(self) -> None:
        by_name: dict[Any, str] = {}
        by_fid: dict[Any, str] = {}
        for word in WORDS:
            name, fid = getattr(self, word)
            if not name or "\0" in name:
                raise ConfigError(f"{PREFIX}{word}.name must be a name, got {name!r}")
            if not 0 < fid <= 0xFFFF:
                raise ConfigError(f"{PREFIX}{word}.fid must be from 1 to 65535, got {fid}")
            for what, value, seen in (("name", name, by_name), ("fid", fid, by_fid)):
                if value in seen:
                    raise ConfigError(f"{PREFIX}{word}.{what} is {value!r}, and so is {PREFIX}{seen[value]}.{what}")
                seen[value] = word
        object.__setattr__(self, "by_name", by_name)
        object.__setattr__(self, "by_fid", by_fid)

    @classmethod
    def from_properties(cls, properties: FieldProperties) -> Self:
        """The fourteen ``mama.sourcediscovery.*`` properties; missing ones keep their defaults.

        :raises ConfigError: as the class; for a fid that is no number, with file and line
        """
        given: dict[str, FieldId] = {}
        for word in WORDS:
            default: FieldId = getattr(DEFAULT_FIELDS, word)
            key = f"{PREFIX}{word}.fid"
            fid = properties.get(key)
            if fid is not None and not (fid.isascii() and fid.isdigit() and len(fid) < 20):
                raise ConfigError(f"{properties.where(key)}: {key} must be from 1 to 65535, got {fid!r}")
            name = properties.get(f"{PREFIX}{word}.name") or default.name
            given[word] = FieldId(name, default.fid if fid is None else int(fid))
        try:
            return cls(**given)
        except ConfigError as e:
            raise ConfigError(f"{properties.path}: {e}") from None


WORDS = tuple(f.name for f in fields(SourceFields) if f.init)
DEFAULT_FIELDS = SourceFields()

#: Attribute of :class:`SourceRecord` for each word of :class:`SourceFields` that holds a STRING.
_STRINGS = {
    "source": "name",
    "sourcestate": "state",
    "sourcedatastate": "data_state",
    "sourceqosrate": "qos_rate",
    "sourceqostimeliness": "qos_timeliness",
    "sourcedatadict": "data_dict",
}
_INTEGERS = frozenset(t for t in FieldType if t.name in ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"))


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One source. Missing fields are None; values outside the enumerations are kept.

    :ivar id: unsigned, 64 bits
    :ivar state: :data:`ONLINE` or :data:`OFFLINE`
    :ivar data_state: :data:`OK` or :data:`SUSPECT`
    :ivar capabilities: all other fields, as text by name
    """

    name: str
    id: int | None = None
    state: str | None = None
    data_state: str | None = None
    qos_rate: str | None = None
    qos_timeliness: str | None = None
    data_dict: str | None = None
    capabilities: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int | None]:
        """Identity of the source within a transport; names alone may repeat."""
        return self.name, self.id


class DecodedSource(NamedTuple):
    record: SourceRecord
    collisions: tuple[str, ...]  #: fields with a matching FID or name but not both, one text each


def encode_source(record: SourceRecord, fields: SourceFields = DEFAULT_FIELDS) -> MamaMsg:
    """The record as a message: name STRING, id U64, one STRING for each capability (SD-05..SD-07).

    :raises BadSourceRecord: without a name, and for a capability with the name of one of ``fields``
    :raises StatusError: for an id that is no U64, or text that no message can hold
    """
    if not record.name:
        raise BadSourceRecord("a source record needs a name")
    msg = MamaMsg()
    for word in WORDS:
        value = getattr(record, _STRINGS.get(word, "id"))
        if value is not None:
            at: FieldId = getattr(fields, word)
            msg.add(FieldType.STRING if word in _STRINGS else FieldType.U64, at.name, at.fid, value)
    for name, value in record.capabilities.items():
        if name in fields.by_name:
            raise BadSourceRecord(f"capability {name!r} is named like a field of the record")
        msg.add(FieldType.STRING, name, 0, value)
    return msg


def decode_source(msg: MamaMsg, fields: SourceFields = DEFAULT_FIELDS) -> DecodedSource:
    """The record of a message.

    A field without a fid matches by name, one without a name by fid; a field with both must match by both. Other fields
    become capabilities, under ``name[fid]`` if their name is one of ``fields``.

    :raises BadSourceRecord: if there is no usable name, or one of ``fields`` has another type
    """
    found: dict[str, Any] = {}
    capabilities: dict[str, str] = {}
    collisions: list[str] = []
    for f in msg.fields:
        by_fid, by_name = fields.by_fid.get(f.fid), fields.by_name.get(f.name)
        word = by_fid or by_name
        ours = word is not None and (by_fid == by_name or not f.fid or not f.name)
        if word is not None and ours and word not in found:
            found[word] = _value(word, f)
            continue
        name = f.name or str(f.fid)
        if by_name is not None:
            name = f"{name}[{f.fid}]"
        if word is not None or name in capabilities:
            collisions.append(_collision(f, by_fid, by_name, fields, repeated=ours or word is None))
        capabilities.setdefault(name, text_of(f))
    if not found.get("source"):
        raise BadSourceRecord(f"no field {fields.source.name}[{fields.source.fid}] with a name in it")
    known = {attribute: found[word] for word, attribute in _STRINGS.items() if word in found}
    return DecodedSource(SourceRecord(id=found.get("sourceid"), capabilities=capabilities, **known), tuple(collisions))


def _value(word: str, f: Field) -> Any:
    if word == "sourceid":
        if f.type not in _INTEGERS or f.value < 0:
            raise BadSourceRecord(f"{f.name}[{f.fid}] must be U64, got {f.type.name} {text_of(f)[:64]!r}")
    elif f.type is not FieldType.STRING:
        raise BadSourceRecord(f"{f.name}[{f.fid}] must be STRING, got {f.type.name}")
    return f.value


def _collision(f: Field, by_fid: str | None, by_name: str | None, fields: SourceFields, *, repeated: bool) -> str:
    if repeated:
        return f"{f.name}[{f.fid}] is repeated; the first one counts"
    reasons = []
    if by_fid is not None:
        reasons.append(f"has the fid of {getattr(fields, by_fid).name}")
    if by_name is not None:
        reasons.append(f"has the name of fid {getattr(fields, by_name).fid}")
    return f"{f.name}[{f.fid}] {' and '.join(reasons)}"


def text_of(f: Field) -> str:
    """Any value as text: strings as they are, the others as JSON."""
    if f.type is FieldType.STRING:
        return str(f.value)
    plain = MamaMsg([f]).as_dict()["fields"][0]["value"]
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
