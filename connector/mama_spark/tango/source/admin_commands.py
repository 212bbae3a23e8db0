"""Commands of the admin device about polling, locks, logging and sub-devices, which tools call. Pure.

An event source has none of these. Commands that ask get the answer of a device server without them; commands that would
change something are refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mama_spark.tango.errors import DevFailed, refusal
from mama_spark.tango.giop.typecode import LONGS_AND_STRINGS, STRINGS, VOID, TypeCode, TypeKind
from mama_spark.tango.idl.calls import CommandCall

LONG = TypeCode(TypeKind.LONG)
_WARN = 3  #: logging level of a device server that nobody has configured
_UNLOCKED = [0] * 6
Answer = tuple[TypeCode, Any]
FindDevice = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """A command.

    :ivar argin: its CmdArgType
    :ivar argout: CmdArgType of its result
    :ivar answer: returns type and value of the result, from a function that finds a device and the argument
    """

    name: str
    argin: int
    argout: int
    answer: Callable[[FindDevice, Any], Answer]


def execute(command: AdminCommand, find: FindDevice, call: CommandCall) -> Answer:
    """Execute a command.

    :param find: raises DevFailed if there is no such device
    :raises DevFailed: the command is refused, or its argument is of another type
    """
    try:
        return command.answer(find, call.argin)
    except (TypeError, ValueError, IndexError, AttributeError):
        desc = f"the argument of {command.name} is of another type"
        raise refusal("API_IncompatibleCmdArgumentType", desc, command.name) from None


def _strings(given: Any) -> list[str]:
    if isinstance(given, str) or not all(isinstance(text, str) for text in given):
        raise TypeError
    return list(given)


def _about_device(find: FindDevice, given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    find(given)
    return given


def _lock_status(find: FindDevice, given: Any) -> Answer:
    name = _about_device(find, given)
    return LONGS_AND_STRINGS, (_UNLOCKED, [f"Device {name} is not locked", "Not defined", "Not defined"])


def _no_strings_of_device(find: FindDevice, given: Any) -> Answer:
    _about_device(find, given)
    return STRINGS, []


def _logging_levels(find: FindDevice, given: Any) -> Answer:
    names = _strings(given)
    for name in names:
        find(name)
    return LONGS_AND_STRINGS, ([_WARN] * len(names), names)


def _not_polled(find: FindDevice, given: Any) -> Answer:
    name = _strings(given)[0]
    find(name)
    raise refusal("API_DeviceNotPolled", f"Device {name} is not polled", "DServer")


def _not_locked(find: FindDevice, given: Any) -> Answer:
    name = _strings(given)[0]
    find(name)
    raise refusal("API_DeviceNotLocked", f"{name}: Device {name} is not locked. Can't re-lock it", "DServer")


def _unlocked(find: FindDevice, given: Any) -> Answer:
    for name in _strings(given[1]):
        find(name)
    return LONG, 0


def _nothing(find: FindDevice, given: Any) -> Answer:
    return VOID, None


def _no_strings(find: FindDevice, given: Any) -> Answer:
    return STRINGS, []


def _refused(why: str) -> Callable[[FindDevice, Any], Answer]:
    def answer(find: FindDevice, given: Any) -> Answer:
        raise _not_supported(why)

    return answer


def _not_supported(why: str) -> DevFailed:
    return refusal("API_NotSupported", why, "DServer")


_POLLING = _refused("an event source polls nothing: its values come from a log")
_LOCKING = _refused("devices of an event source cannot be written, and so not be locked")
_LOGGING = _refused("an event source has no logging of Tango: its messages are on its standard error")
_ENDING = _refused("an event source is ended and started where it runs")
_V, _B, _L, _S, _LS, _SS = 0, 1, 3, 8, 17, 16  # CmdArgType: void, boolean, long, string, longs and strings, strings

COMMANDS: Sequence[AdminCommand] = (
    AdminCommand("AddLoggingTarget", _SS, _V, _LOGGING),
    AdminCommand("AddObjPolling", _LS, _V, _POLLING),
    AdminCommand("DevLockStatus", _S, _LS, _lock_status),
    AdminCommand("DevPollStatus", _S, _SS, _no_strings_of_device),
    AdminCommand("DevRestart", _S, _V, _ENDING),
    AdminCommand("EnableEventSystemPerfMon", _B, _V, _nothing),
    AdminCommand("GetLoggingLevel", _SS, _LS, _logging_levels),
    AdminCommand("GetLoggingTarget", _S, _SS, _no_strings_of_device),
    AdminCommand("Kill", _V, _V, _ENDING),
    AdminCommand("LockDevice", _LS, _V, _LOCKING),
    AdminCommand("PolledDevice", _V, _SS, _no_strings),
    AdminCommand("QuerySubDevice", _V, _SS, _no_strings),
    AdminCommand("QueryWizardClassProperty", _S, _SS, _no_strings),
    AdminCommand("QueryWizardDevProperty", _S, _SS, _no_strings),
    AdminCommand("ReLockDevices", _SS, _V, _not_locked),
    AdminCommand("RemObjPolling", _SS, _V, _not_polled),
    AdminCommand("RemoveLoggingTarget", _SS, _V, _LOGGING),
    AdminCommand("RestartServer", _V, _V, _ENDING),
    AdminCommand("SetLoggingLevel", _LS, _V, _LOGGING),
    AdminCommand("StartLogging", _V, _V, _nothing),
    AdminCommand("StartPolling", _V, _V, _nothing),
    AdminCommand("StopLogging", _V, _V, _nothing),
    AdminCommand("StopPolling", _V, _V, _nothing),
    AdminCommand("UnLockDevice", _LS, _L, _unlocked),
    AdminCommand("UpdObjPollingPeriod", _LS, _V, lambda find, given: _not_polled(find, given[1])),
)
