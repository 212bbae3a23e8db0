"""Records of a log as fields: OMNM messages, and JSON objects with the types of a dictionary. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from mama_spark.contracts.errors import MamaError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field, MamaMsg
from mama_spark.mama.messages.omnm import BadMessage, decode
from mama_spark.mama.messages.status import RESERVED, MsgType, StatusError
from mama_spark.mama.messages.values import MamaPrice, MamaTime
from mama_spark.openmama.wire.protocol.dictionary import DictionaryEntry
from mama_spark.openmama.wire.protocol.market_data import STAMPS

#: Types of messages that hold all fields of a topic: they are served as updates.
_IMAGES = {MsgType.INITIAL, MsgType.SNAPSHOT, MsgType.RECAP, MsgType.BOOK_INITIAL, MsgType.BOOK_SNAPSHOT}


class BadRecord(MamaError):
    """A record of the log that is no message; the text says why."""


def fields_of(payload: bytes, dictionary: Mapping[str, DictionaryEntry]) -> tuple[int, list[Field]]:
    """Type of the message, and its fields without the stamps, which the publisher writes itself.

    :param dictionary: numbers and types of the fields of JSON objects, by name
    :raises BadRecord: it is neither an OMNM message nor a JSON object
    """
    if payload[:1] == b"O":
        try:
            msg = decode(payload)
        except BadMessage as e:
            raise BadRecord(f"no OMNM message: {e.info}") from None
    else:
        msg = _of_json(payload, dictionary)
    kind = msg.get("MdMsgType", RESERVED["MdMsgType"].fid, int(MsgType.UPDATE))
    if not isinstance(kind, int) or kind in _IMAGES:
        kind = int(MsgType.UPDATE)
    return kind, [f for f in msg if f.name not in STAMPS]


def _of_json(payload: bytes, dictionary: Mapping[str, DictionaryEntry]) -> MamaMsg:
    try:
        found = orjson.loads(payload)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise BadRecord("neither an OMNM message nor a JSON object")
    msg = MamaMsg()
    for name, value in found.items():
        if value is None:
            continue
        entry = dictionary.get(name)
        kind = _natural(value) if entry is None else entry.type
        if kind is None:
            raise BadRecord(f"field {name!r}: {type(value).__name__} has no type of a field")
        fid = entry.fid if entry is not None else RESERVED[name].fid if name in RESERVED else 0
        try:
            msg.add(kind, name, fid, _converted(kind, value))
        except (StatusError, ValueError, TypeError) as e:
            raise BadRecord(f"field {name!r}: {e.info if isinstance(e, StatusError) else e}") from None
    return msg


def _natural(value: Any) -> FieldType | None:
    if isinstance(value, bool):
        return FieldType.BOOL
    if isinstance(value, int):
        return FieldType.I64 if value < 1 << 63 else FieldType.U64
    if isinstance(value, float):
        return FieldType.F64
    return FieldType.STRING if isinstance(value, str) else None


def _converted(kind: FieldType, value: Any) -> Any:
    if kind is FieldType.PRICE:
        return MamaPrice(float(value))
    if kind is FieldType.TIME:
        from datetime import datetime

        at = datetime.fromisoformat(value)
        if at.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return MamaTime.from_us(round(at.timestamp() * 1e6))
    if kind is FieldType.STRING and not isinstance(value, str):
        return orjson.dumps(value).decode()
    return value
