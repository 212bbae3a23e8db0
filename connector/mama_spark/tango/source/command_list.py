"""Descriptions of the commands of an event source's devices (``command_list_query``). Pure."""

from __future__ import annotations

from enum import IntEnum

from mama_spark.tango.idl.negotiation import CONFIRM, QUERY, SUBSCRIBE
from mama_spark.tango.types import CommandInfo

from .admin_commands import COMMANDS


class _Type(IntEnum):
    """CmdArgType (Tango IDL): the types that these commands use."""

    VOID = 0
    STRING = 8
    LONGS_AND_STRINGS = 17
    STRINGS = 16
    STATE = 19


_NO_TEXT = "Uninitialised"


def _info(name: str, argin: _Type, argout: _Type, argin_text: str, argout_text: str) -> CommandInfo:
    return CommandInfo(name, 0, 0, argin, argout, argin_text, argout_text)


_COMMON = (
    _info("State", _Type.VOID, _Type.STATE, _NO_TEXT, "Device state"),
    _info("Status", _Type.VOID, _Type.STRING, _NO_TEXT, "Device status"),
)
DEVICE_COMMANDS = (_info("Init", _Type.VOID, _Type.VOID, _NO_TEXT, _NO_TEXT), *_COMMON)
_OWN_ADMIN_COMMANDS = (
    _info(CONFIRM, _Type.STRINGS, _Type.VOID, "Device, attribute, event of each subscription", _NO_TEXT),
    _info("QueryClass", _Type.VOID, _Type.STRINGS, _NO_TEXT, "Device server class(es) list"),
    _info("QueryDevice", _Type.VOID, _Type.STRINGS, _NO_TEXT, "Device server device(s) list"),
    _info(QUERY, _Type.VOID, _Type.STRING, _NO_TEXT, "JSON"),
    *_COMMON,
    _info(
        SUBSCRIBE, _Type.STRINGS, _Type.LONGS_AND_STRINGS, "Device, attribute, action, event, IDL version", "Endpoints"
    ),
)
ADMIN_COMMANDS = tuple(
    sorted(
        (
            *_OWN_ADMIN_COMMANDS,
            *(CommandInfo(one.name, 0, 0, one.argin, one.argout, _NO_TEXT, _NO_TEXT) for one in COMMANDS),
        ),
        key=lambda info: info.cmd_name.lower(),
    )
)
