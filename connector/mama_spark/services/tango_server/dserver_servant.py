"""What the admin device of an event source answers: subscriptions and what else its commands are (TG-26). Pure."""

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
from mama_spark.tango.topics import BadEventTopic

from .event_supplier import EventSupplier

IDL = 5  #: of the devices
RELEASE = 1033  #: of the library that this answers as
ZMQ_RELEASE = 435


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and how it gets here.

    :ivar host: its address
    :ivar endpoints: where it shall connect for heartbeats and events, the likeliest pair first
    """

    host: str
    endpoints: tuple[EndpointPair, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """What the source says of itself.

    :ivar hwm: for subscribers to set
    """

    host_name: str
    hwm: int
    release: int = RELEASE


class DServerServant:
    """The commands of the admin device. Called with the lock of the source held."""

    def __init__(self, board: EventSupplier, identity: Identity) -> None:
        self._board, self._identity = board, identity
        self._commands: dict[str, Callable[[Caller, float, CommandCall], tuple[TypeCode, Any]]] = {
            SUBSCRIBE.lower(): self._subscribe,
            CONFIRM.lower(): self._confirm,
            QUERY.lower(): self._query,
            "eventsubscriptionchange": self._no_notifd,
            "querydevice": self._query_devices,
            "queryclass": self._query_classes,
        }

    def command(self, at: Caller, now: float, given: CommandCall) -> tuple[TypeCode, Any] | None:
        """The result of a command, with its type; None: there is no such command here.

        :raises DevFailed: the answer is no
        """
        found = self._commands.get(given.name.lower())
        return None if found is None else found(at, now, given)

    def _subscribe(self, at: Caller, now: float, given: CommandCall) -> tuple[TypeCode, Any]:
        """TG-27, TG-28"""
        argin = _strings(given)
        pairs = at.endpoints
        if [text.lower() for text in argin] == [INFO]:
            lines = [line for pair in pairs for line in (f"Heartbeat: {pair.heartbeat}", f"Event: {pair.event}")]
            return LONGS_AND_STRINGS, ([self._identity.release], lines)
        info = SubscriberInfo.parse(argin)
        if info.action != "subscribe":
            desc = f"The action {info.action!r:.50} is not known; it must be subscribe"
            raise refusal("API_WrongNumberOfArgs", desc, SUBSCRIBE)
        client = (at.host, given.client)
        try:
            topic = self._board.subscribe(
                info.device, info.attribute, info.event, _form(info.idl, info.prefixed), client, now
            )
        except BadEventTopic as error:
            raise refusal("API_AttrNotFound", str(error), SUBSCRIBE) from None
        found = SubscriptionInfo(
            self._identity.release, IDL, self._identity.hwm, 0, 0, ZMQ_RELEASE, pairs, str(topic), self._board.channel
        )
        return LONGS_AND_STRINGS, found.argout()

    def _confirm(self, at: Caller, now: float, given: CommandCall) -> tuple[TypeCode, Any]:
        """TG-37"""
        client = (at.host, given.client)
        for device, attribute, event in parse_confirm(_strings(given)):
            info = SubscriberInfo.parse([device, attribute, "subscribe", event, "0"])
            form = _form(info.idl, info.prefixed)
            try:
                self._board.subscribe(info.device, info.attribute, info.event, form, client, now)
            except BadEventTopic as error:
                raise refusal("API_AttrNotFound", str(error), CONFIRM) from None
        return VOID, None

    def _query(self, at: Caller, now: float, given: CommandCall) -> tuple[TypeCode, Any]:
        told = {"version": 1, "server": {"event_counters": self._board.counters(), "perf": None}, "client": None}
        return STRING, json.dumps(told)

    def _query_devices(self, at: Caller, now: float, given: CommandCall) -> tuple[TypeCode, Any]:
        states = self._board.devices.values()
        return STRINGS, [f"{state.device.dev_class}::{state.key}" for state in states]

    def _query_classes(self, at: Caller, now: float, given: CommandCall) -> tuple[TypeCode, Any]:
        return STRINGS, sorted({state.device.dev_class for state in self._board.devices.values()})

    def _no_notifd(self, at: Caller, now: float, given: CommandCall) -> tuple[TypeCode, Any]:
        raise refusal("API_NotSupported", "Events go by ZeroMQ only", "EventSubscriptionChange")


def _form(idl: int, prefixed: bool) -> int:
    """Which form of data a client takes; those that reconnect say 0, and write what they had."""
    if prefixed or idl >= 5:
        return 5
    return 3 if 0 < idl <= 3 else 4


def _strings(given: CommandCall) -> list[str]:
    """:raises DevFailed: API_IncompatibleCmdArgumentType: the argument is another"""
    code = given.type.real
    if code.kind is TypeKind.SEQUENCE and code.members[0].real.kind is TypeKind.STRING:
        return list(given.argin)
    raise refusal("API_IncompatibleCmdArgumentType", f"{given.name:.100} takes DevVarStringArray", given.name[:100])
