"""Servant of the admin device (DServer) of an event source: negotiation, confirmation, queries (TG-26). Pure.

Tools also call commands about polling, locks, logging and sub-devices. An event source has none of these: commands that
ask get the answer of a device server without them; commands that would change something are refused with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..errors import DevFailed, refusal
from ..giop.typecode import LONGS_AND_STRINGS, STRING, STRINGS, VOID, TypeCode, TypeKind
from ..idl.calls import CommandCall
from ..idl.negotiation import (
    ACTION,
    CONFIRM,
    INFO,
    QUERY,
    SUBSCRIBE,
    EndpointPair,
    SubscriberInfo,
    SubscriptionInfo,
    parse_confirm,
)
from ..topics import IDL, BadEventTopic, Topic
from ..types import CommandInfo
from .attribute_state import NO_TEXT, STATE_COMMANDS
from .event_supplier import EventSupplier

RELEASE = 1033  #: Tango release that the source sends: 10.3.3
ZMQ_RELEASE = 435  #: ZeroMQ release that the source sends: 4.3.5


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a call: its address, and the endpoints for it, the preferred pair first (TG-33)."""

    host: str
    endpoints: tuple[EndpointPair, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """The source as its admin device describes it: name of the machine, high-water mark for subscribers, Tango
    release."""

    host_name: str
    hwm: int
    release: int = RELEASE


class _Type(IntEnum):
    """CmdArgType (Tango IDL): the types that these commands use."""

    VOID = 0
    BOOLEAN = 1
    LONG = 3
    STRING = 8
    STRINGS = 16
    LONGS_AND_STRINGS = 17


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A call of a command of the admin device; ``now`` is seconds of a monotonic clock."""

    supplier: EventSupplier
    identity: Identity
    caller: Caller
    now: float
    call: CommandCall

    def execute(self) -> Answer | None:
        """Execute the command; returns type and value of the result, or None if there is no such command.

        :raises DevFailed: the admin device refuses the command, or the argument is of another type
        """
        command = _COMMANDS.get(self.call.name.lower())
        if command is None:
            return None
        if not _is(command.argin, self.call.argin):
            raise self.wrong_argument()
        return command.answer(self, self.call.argin)

    def wrong_argument(self) -> DevFailed:
        name = self.call.name
        return refusal("API_IncompatibleCmdArgumentType", f"the argument of {name} is of another type", name)

    def find(self, given: list[str]) -> str:
        """The first of some names, of a device that is here.

        :raises DevFailed: there is none
        """
        if not given:
            raise self.wrong_argument()
        self.supplier.device(given[0])
        return given[0]

    def subscribe(self, info: SubscriberInfo, command: str) -> Topic:
        """Add or confirm a subscription. Clients that reconnect send the IDL version 0, and the event with its prefix.

        :raises DevFailed: the device does not send such events
        """
        idl = 5 if info.prefixed or info.idl >= 5 else 3 if 0 < info.idl <= 3 else 4
        client = _identity(self.caller, self.call)
        try:
            return self.supplier.subscribe(info.device, info.attribute, info.event, idl, client, self.now)
        except BadEventTopic as error:
            raise refusal("API_AttrNotFound", str(error), command) from None


Answer = tuple[TypeCode, Any]


@dataclass(frozen=True, slots=True)
class _Command:
    """A command: ``answer`` returns type and value of the result, from the call and its argument."""

    name: str
    argin: _Type
    argout: _Type
    answer: Callable[[AdminCall, Any], Answer]
    argin_text: str = NO_TEXT
    argout_text: str = NO_TEXT


def _is(kind: _Type, given: Any) -> bool:
    if kind is _Type.STRING:
        return isinstance(given, str)
    if kind is _Type.STRINGS:
        return isinstance(given, list)
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], list)
    return kind is not _Type.LONGS_AND_STRINGS or pair


def _subscribe(call: AdminCall, given: list[str]) -> Answer:
    """ZmqEventSubscriptionChange (TG-27, TG-28)"""
    pairs, identity = call.caller.endpoints, call.identity
    if [text.lower() for text in given] == [INFO]:
        lines = [line for pair in pairs for line in (f"Heartbeat: {pair.heartbeat}", f"Event: {pair.event}")]
        return LONGS_AND_STRINGS, ([identity.release], lines)
    info = SubscriberInfo.parse(given)
    if info.action != ACTION:
        desc = f"The action {info.action!r:.50} is unknown; it must be subscribe"
        raise refusal("API_WrongNumberOfArgs", desc, SUBSCRIBE)
    topic, channel = str(call.subscribe(info, SUBSCRIBE)), call.supplier.channel
    found = SubscriptionInfo(identity.release, IDL, identity.hwm, 0, 0, ZMQ_RELEASE, pairs, topic, channel)
    return LONGS_AND_STRINGS, found.argout()


def _confirm(call: AdminCall, given: list[str]) -> Answer:
    """EventConfirmSubscription (TG-37)"""
    for device, attribute, event in parse_confirm(given):
        call.subscribe(SubscriberInfo.parse([device, attribute, ACTION, event, "0"]), CONFIRM)
    return VOID, None


def _query(call: AdminCall, given: object) -> Answer:
    answer = {"version": 1, "server": {"event_counters": call.supplier.counters(), "perf": None}, "client": None}
    return STRING, json.dumps(answer)


def _devices(call: AdminCall, given: object) -> Answer:
    return STRINGS, [f"{one.declaration.dev_class}::{one.key}" for one in call.supplier.devices.values()]


def _classes(call: AdminCall, given: object) -> Answer:
    return STRINGS, sorted({one.declaration.dev_class for one in call.supplier.devices.values()})


def _identity(caller: Caller, call: CommandCall) -> str:
    """Identity of a client: two with the same address differ in process id (C++) or UUID (Java)."""
    client = call.client
    if client is None:
        return caller.host
    return f"{caller.host} {client.pid}" if not any(client.uuid) else f"{caller.host} {client.main_class} {client.uuid}"


def _lock_status(call: AdminCall, given: str) -> Answer:
    name = call.find([given])
    return LONGS_AND_STRINGS, ([0] * 6, [f"Device {name} is not locked", "Not defined", "Not defined"])


def _no_strings_of_device(call: AdminCall, given: str) -> Answer:
    call.find([given])
    return STRINGS, []


def _logging_levels(call: AdminCall, given: list[str]) -> Answer:
    return LONGS_AND_STRINGS, ([_WARN] * len(given), [call.find([name]) for name in given])


def _not_polled(call: AdminCall, given: list[str]) -> Answer:
    raise refusal("API_DeviceNotPolled", f"Device {call.find(given)} is not polled", "DServer")


def _not_locked(call: AdminCall, given: list[str]) -> Answer:
    name = call.find(given)
    raise refusal("API_DeviceNotLocked", f"{name}: Device {name} is not locked. Can't re-lock it", "DServer")


def _unlocked(call: AdminCall, given: tuple[Any, list[str]]) -> Answer:
    for name in given[1]:
        call.find([name])
    return TypeCode(TypeKind.LONG), 0


def _always(code: TypeCode, value: Any) -> Callable[[AdminCall, Any], Answer]:
    return lambda call, given: (code, value)


def _refused(why: str, origin: str = "DServer") -> Callable[[AdminCall, Any], Answer]:
    def answer(call: AdminCall, given: object) -> Answer:
        raise refusal("API_NotSupported", why, origin)

    return answer


_WARN = 3  #: logging level of a device server that nobody has configured
_NOTHING, _NO_STRINGS = _always(VOID, None), _always(STRINGS, [])
_POLLING = _refused("an event source polls nothing: its values come from a log")
_LOCKING = _refused("devices of an event source cannot be written, and so not be locked")
_LOGGING = _refused("an event source has no logging of Tango: its messages are on its standard error")
_ENDING = _refused("an event source is ended and started where it runs")
_V, _B, _L, _S, _SS, _LS = _Type
_ALL = (
    _Command(SUBSCRIBE, _SS, _LS, _subscribe, "Device, attribute, action, event, IDL version", "Endpoints"),
    _Command(CONFIRM, _SS, _V, _confirm, "Device, attribute, event of each subscription"),
    _Command(QUERY, _V, _S, _query, argout_text="JSON"),
    _Command("QueryClass", _V, _SS, _classes, argout_text="Device server class(es) list"),
    _Command("QueryDevice", _V, _SS, _devices, argout_text="Device server device(s) list"),
    _Command("AddLoggingTarget", _SS, _V, _LOGGING),
    _Command("AddObjPolling", _LS, _V, _POLLING),
    _Command("DevLockStatus", _S, _LS, _lock_status),
    _Command("DevPollStatus", _S, _SS, _no_strings_of_device),
    _Command("DevRestart", _S, _V, _ENDING),
    _Command("EnableEventSystemPerfMon", _B, _V, _NOTHING),
    _Command("GetLoggingLevel", _SS, _LS, _logging_levels),
    _Command("GetLoggingTarget", _S, _SS, _no_strings_of_device),
    _Command("Kill", _V, _V, _ENDING),
    _Command("LockDevice", _LS, _V, _LOCKING),
    _Command("PolledDevice", _V, _SS, _NO_STRINGS),
    _Command("QuerySubDevice", _V, _SS, _NO_STRINGS),
    _Command("QueryWizardClassProperty", _S, _SS, _NO_STRINGS),
    _Command("QueryWizardDevProperty", _S, _SS, _NO_STRINGS),
    _Command("ReLockDevices", _SS, _V, _not_locked),
    _Command("RemObjPolling", _SS, _V, _not_polled),
    _Command("RemoveLoggingTarget", _SS, _V, _LOGGING),
    _Command("RestartServer", _V, _V, _ENDING),
    _Command("SetLoggingLevel", _LS, _V, _LOGGING),
    _Command("StartLogging", _V, _V, _NOTHING),
    _Command("StartPolling", _V, _V, _NOTHING),
    _Command("StopLogging", _V, _V, _NOTHING),
    _Command("StopPolling", _V, _V, _NOTHING),
    _Command("UnLockDevice", _LS, _L, _unlocked),
    _Command("UpdObjPollingPeriod", _LS, _V, lambda call, given: _not_polled(call, given[1])),
)
_OLD_EVENTS = _refused("Events are sent by ZeroMQ only", "EventSubscriptionChange")
_COMMANDS = {
    **{command.name.lower(): command for command in _ALL},
    "eventsubscriptionchange": _Command("EventSubscriptionChange", _V, _V, _OLD_EVENTS),
}
_INFOS = (CommandInfo(one.name, 0, 0, one.argin, one.argout, one.argin_text, one.argout_text) for one in _ALL)
ADMIN_COMMANDS = tuple(sorted((*_INFOS, *STATE_COMMANDS), key=lambda info: info.cmd_name.lower()))
