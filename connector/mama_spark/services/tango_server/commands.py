"""The commands of an event source's devices, as clients that look around get them. Pure."""

from __future__ import annotations

from enum import IntEnum

from mama_spark.tango.idl.negotiation import CONFIRM, QUERY, SUBSCRIBE
from mama_spark.tango.types import CommandInfo


class _Type(IntEnum):
    """CmdArgType, as far as these commands have them."""

    VOID = 0
    STRING = 8
    LONGS_AND_STRINGS = 12
    STRINGS = 16
    STATE = 19


_NOTHING = "Uninitialised"


def _info(name: str, argin: _Type, argout: _Type, asks: str, gives: str) -> CommandInfo:
    return CommandInfo(name, 0, 0, argin, argout, asks, gives)


_COMMON = (
    _info("State", _Type.VOID, _Type.STATE, _NOTHING, "Device state"),
    _info("Status", _Type.VOID, _Type.STRING, _NOTHING, "Device status"),
)
DEVICE_COMMANDS = (_info("Init", _Type.VOID, _Type.VOID, _NOTHING, _NOTHING), *_COMMON)
ADMIN_COMMANDS = (
    _info(CONFIRM, _Type.STRINGS, _Type.VOID, "Device, attribute, event of each subscription", _NOTHING),
    _info("QueryClass", _Type.VOID, _Type.STRINGS, _NOTHING, "Device server class(es) list"),
    _info("QueryDevice", _Type.VOID, _Type.STRINGS, _NOTHING, "Device server device(s) list"),
    _info(QUERY, _Type.VOID, _Type.STRING, _NOTHING, "JSON"),
    *_COMMON,
    _info(
        SUBSCRIBE, _Type.STRINGS, _Type.LONGS_AND_STRINGS, "Device, attribute, action, event, IDL version", "Endpoints"
    ),
)
