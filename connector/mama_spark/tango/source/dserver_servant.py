"""Servant of the admin device (DServer) of an event source: negotiation, confirmation, queries (TG-26). Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mama_spark.tango.errors import refusal
from mama_spark.tango.giop.typecode import LONGS_AND_STRINGS, STRING, STRINGS, VOID, TypeCode, TypeKind
from mama_spark.tango.idl.calls import CommandCall
from mama_spark.tango.idl.negotiation import (
    CONFIRM,
    INFO,
    QUERY,
    SUBSCRIBE,
    EndpointPair,
    SubscriberInfo,
    SubscriptionInfo,
    parse_confirm,
)
from mama_spark.tango.topics import IDL, BadEventTopic

from .admin_commands import COMMANDS, execute
from .event_supplier import EventSupplier

RELEASE = 1033  #: Tango release that the source sends: 10.3.3
ZMQ_RELEASE = 435  #: ZeroMQ release that the source sends: 4.3.5


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a call.

    :ivar host: address of the client
    :ivar endpoints: endpoints for this client, the preferred pair first (TG-33)
    """

    host: str
    endpoints: tuple[EndpointPair, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """What the source sends about itself.

    :ivar host_name: name of the machine
    :ivar hwm: high-water mark for subscribers
    :ivar release: Tango release
    """

    host_name: str
    hwm: int
    release: int = RELEASE


_OTHERS = {command.name.lower(): command for command in COMMANDS}


class DServerServant:
    """Executes commands of the admin device. The caller holds the lock of the source."""

    def __init__(self, supplier: EventSupplier, identity: Identity) -> None:
        self._supplier, self._identity = supplier, identity
        self._commands: dict[str, Callable[[Caller, float, CommandCall], tuple[TypeCode, Any]]] = {
            SUBSCRIBE.lower(): self._subscribe,
            CONFIRM.lower(): self._confirm,
            QUERY.lower(): self._query,
            "eventsubscriptionchange": self._refuse_notifd,
            "querydevice": self._query_devices,
            "queryclass": self._query_classes,
        }

    def command(self, caller: Caller, now: float, call: CommandCall) -> tuple[TypeCode, Any] | None:
        """Execute a command; returns type and value of the result, or None if there is no such command.

        :param now: seconds of a monotonic clock
        :raises DevFailed: the admin device refuses the command
        """
        found = self._commands.get(call.name.lower())
        if found is not None:
            return found(caller, now, call)
        other = _OTHERS.get(call.name.lower())
        return None if other is None else execute(other, self._supplier.device, call)

    def _subscribe(self, caller: Caller, now: float, call: CommandCall) -> tuple[TypeCode, Any]:
        """ZmqEventSubscriptionChange (TG-27, TG-28)"""
        argin = _strings(call)
        pairs = caller.endpoints
        if [text.lower() for text in argin] == [INFO]:
            lines = [line for pair in pairs for line in (f"Heartbeat: {pair.heartbeat}", f"Event: {pair.event}")]
            return LONGS_AND_STRINGS, ([self._identity.release], lines)
        info = SubscriberInfo.parse(argin)
        if info.action != "subscribe":
            desc = f"The action {info.action!r:.50} is unknown; it must be subscribe"
            raise refusal("API_WrongNumberOfArgs", desc, SUBSCRIBE)
        client = _identity(caller, call)
        try:
            topic = self._supplier.subscribe(
                info.device, info.attribute, info.event, _idl_version(info.idl, info.prefixed), client, now
            )
        except BadEventTopic as error:
            raise refusal("API_AttrNotFound", str(error), SUBSCRIBE) from None
        found = SubscriptionInfo(
            self._identity.release,
            IDL,
            self._identity.hwm,
            0,
            0,
            ZMQ_RELEASE,
            pairs,
            str(topic),
            self._supplier.channel,
        )
        return LONGS_AND_STRINGS, found.argout()

    def _confirm(self, caller: Caller, now: float, call: CommandCall) -> tuple[TypeCode, Any]:
        """EventConfirmSubscription (TG-37)"""
        client = _identity(caller, call)
        for device, attribute, event in parse_confirm(_strings(call)):
            info = SubscriberInfo.parse([device, attribute, "subscribe", event, "0"])
            idl = _idl_version(info.idl, info.prefixed)
            try:
                self._supplier.subscribe(info.device, info.attribute, info.event, idl, client, now)
            except BadEventTopic as error:
                raise refusal("API_AttrNotFound", str(error), CONFIRM) from None
        return VOID, None

    def _query(self, caller: Caller, now: float, call: CommandCall) -> tuple[TypeCode, Any]:
        answer = {"version": 1, "server": {"event_counters": self._supplier.counters(), "perf": None}, "client": None}
        return STRING, json.dumps(answer)

    def _query_devices(self, caller: Caller, now: float, call: CommandCall) -> tuple[TypeCode, Any]:
        devices = self._supplier.devices.values()
        return STRINGS, [f"{device.declaration.dev_class}::{device.key}" for device in devices]

    def _query_classes(self, caller: Caller, now: float, call: CommandCall) -> tuple[TypeCode, Any]:
        return STRINGS, sorted({device.declaration.dev_class for device in self._supplier.devices.values()})

    def _refuse_notifd(self, caller: Caller, now: float, call: CommandCall) -> tuple[TypeCode, Any]:
        raise refusal("API_NotSupported", "Events are sent by ZeroMQ only", "EventSubscriptionChange")


def _identity(caller: Caller, call: CommandCall) -> str:
    """Identity of a client: two with the same address differ in process id (C++) or UUID (Java)."""
    client = call.client
    if client is None:
        return caller.host
    return f"{caller.host} {client.pid}" if not any(client.uuid) else f"{caller.host} {client.main_class} {client.uuid}"


def _idl_version(idl: int, prefixed: bool) -> int:
    """IDL version of the data for a client. Clients that reconnect send 0, and the event name with its prefix."""
    if prefixed or idl >= 5:
        return 5
    return 3 if 0 < idl <= 3 else 4


def _strings(call: CommandCall) -> list[str]:
    """The argument of a command as strings.

    :raises DevFailed: API_IncompatibleCmdArgumentType: the argument is no DevVarStringArray
    """
    code = call.type.real
    if code.kind is TypeKind.SEQUENCE and code.members[0].real.kind is TypeKind.STRING:
        return list(call.argin)
    raise refusal("API_IncompatibleCmdArgumentType", f"{call.name:.100} needs a DevVarStringArray", call.name[:100])
