"""Arguments and results of the admin device's commands that negotiate subscriptions (TG-09, TG-10, TG-26). Pure.

They are lists of strings and numbers with positional meaning, which became longer with every release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..errors import BadReply, refusal
from ..topics import NO_DATABASE, SCHEME, event_topic
from ..types import EVENT_NAMES, EventType

SUBSCRIBE = "ZmqEventSubscriptionChange"
CONFIRM = "EventConfirmSubscription"
QUERY = "QueryEventSystem"
IMPORT = "DbImportDevice"
ACTION = "subscribe"  #: the only one; there is no command to unsubscribe
INFO = "info"  #: instead of all arguments: returns the endpoints as text
_IDL_PREFIX = "idl5_"


def _event(text: str) -> tuple[EventType, bool]:
    """The type, and whether it has the prefix, which reconnecting clients add."""
    name = text.lower()
    event = EVENT_NAMES.get(name.removeprefix(_IDL_PREFIX))
    if event is None or event is EventType.QUALITY:
        desc = f"The event type {text!r} is not known"
        raise refusal("API_WrongNumberOfArgs", desc, "ZmqEventSubscriptionChange")
    return event, name.startswith(_IDL_PREFIX)


@dataclass(frozen=True, slots=True)
class SubscriberInfo:
    """SUBSCRIBER_INFO (TG-09).

    :ivar attribute: or pipe; ignored, and possibly empty, for interface changes
    :ivar idl: newest IDL version that the client can decode; real clients send 0 when they reconnect
    :ivar prefixed: the event was written as ``idl5_change``
    """

    device: str
    attribute: str
    event: EventType
    idl: int = 5
    action: str = ACTION
    prefixed: bool = False

    def argin(self) -> list[str]:
        """Argument of ``ZmqEventSubscriptionChange``."""
        event = (_IDL_PREFIX if self.prefixed else "") + self.event.wire_name
        return [self.device, self.attribute, self.action, event, str(self.idl)]

    @classmethod
    def parse(cls, argin: Sequence[str]) -> SubscriberInfo:
        """Parse the argument of a client. One that sends no version decodes IDL 4.

        :raises DevFailed: API_WrongNumberOfArgs, as real servers answer
        """
        if len(argin) not in (4, 5):
            raise refusal("API_WrongNumberOfArgs", f"{len(argin)} arguments; there must be 5", SUBSCRIBE)
        event, prefixed = _event(argin[3])
        version = argin[4] if len(argin) == 5 else "4"
        if not version.isdecimal() or len(version) > 4:
            raise refusal("API_WrongNumberOfArgs", f"{version!r:.50} is no version of a client", SUBSCRIBE)
        return cls(argin[0].lower(), argin[1].lower(), event, int(version), argin[2].lower(), prefixed)


class EndpointPair(NamedTuple):
    """Endpoints of heartbeats and events (TG-08, TG-31)."""

    heartbeat: str
    event: str


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """SUBSCRIPTION_INFO (TG-10, TG-28).

    :ivar release: of the server's Tango library, 1033 = 10.3.3
    :ivar device_idl: version of the device's interface
    :ivar hwm: high-water mark for the subscriber
    :ivar rate: of multicast, as ``ivl``; garbage from servers without a database
    :ivar zmq: release of the server's ZeroMQ, 435 = 4.3.5; 0: unknown
    :ivar endpoints: the first pair, then alternates (TG-33)
    :ivar topic: of the events (EVENT_CHANNEL, TG-35); None: an old server, see :meth:`completed`
    :ivar channel: of the heartbeats without its last part (HEARTBEAT_CHANNEL, TG-36); None likewise
    """

    release: int
    device_idl: int
    hwm: int
    rate: int = 0
    ivl: int = 0
    zmq: int = 0
    endpoints: tuple[EndpointPair, ...] = ()
    topic: str | None = None
    channel: str | None = None

    def argout(self) -> tuple[list[int], list[str]]:
        """Result of ``ZmqEventSubscriptionChange``."""
        names = [] if self.topic is None or self.channel is None else [self.topic, self.channel]
        endpoints = [endpoint for pair in self.endpoints for endpoint in pair]
        return [self.release, self.device_idl, self.hwm, self.rate, self.ivl, self.zmq], endpoints + names

    @classmethod
    def parse(cls, longs: Sequence[int], strings: Sequence[str]) -> SubscriptionInfo:
        """Parse the result of a server. Servers before 9.3, and JTango, send no names after the endpoints; the list is
        examined, since the release number does not tell.

        :raises BadReply: they contain no endpoints
        """
        named = len(strings) > 1 and strings[-1].lower().startswith(SCHEME)
        endpoints = list(strings[:-2] if named else strings)
        if (
            len(longs) < 3
            or not endpoints
            or len(endpoints) % 2
            or not all("://" in endpoint for endpoint in endpoints)
        ):
            raise BadReply(f"no answer to a subscription: {list(longs)[:10]}, {list(strings)[:10]}")
        topic, channel = strings[-2:] if named else (None, None)
        release, idl, hwm, rate, ivl, zmq = [int(n) for n in longs[:6]] + [0] * (6 - len(longs))
        pairs = tuple(EndpointPair(*endpoints[i : i + 2]) for i in range(0, len(endpoints), 2))
        return cls(release, idl, hwm, rate, ivl, zmq, pairs, topic, channel)

    def completed(self, tango_host: str, dbase: bool, subscriber: SubscriberInfo, admin: str) -> SubscriptionInfo:
        """With topic and channel, which clients of servers before 9.3 must construct.

        :param tango_host: host in topics: of the database; without one, host name and port of the server
        :param admin: name of the admin device
        """
        if self.topic is not None:
            return self
        idl = min(subscriber.idl, self.device_idl)
        topic = event_topic(tango_host, subscriber.device, subscriber.attribute, subscriber.event, dbase, idl)
        channel = f"{SCHEME}{tango_host}/{admin}".lower() + ("" if dbase else NO_DATABASE)
        return replace(self, topic=str(topic), channel=channel)


class Confirmation(NamedTuple):
    """Confirmation of one subscription (TG-37). ``event`` as in its topic: ``idl5_change``."""

    device: str
    attribute: str
    event: str


def confirm_argin(subscriptions: Sequence[Confirmation]) -> list[str]:
    """Argument of ``EventConfirmSubscription``: all subscriptions of a channel at once."""
    return [text for subscription in subscriptions for text in subscription]


def parse_confirm(argin: Sequence[str]) -> list[Confirmation]:
    """:raises DevFailed: API_WrongNumberOfArgs: the number of arguments is not a multiple of 3"""
    if not argin or len(argin) % 3:
        raise refusal("API_WrongNumberOfArgs", f"{len(argin)} arguments are no triples", CONFIRM)
    return [Confirmation(*argin[i : i + 3]) for i in range(0, len(argin), 3)]


class Imported(NamedTuple):
    """Result of ``DbImportDevice``: the entry of a device in the database."""

    name: str
    ior: str
    version: str
    server: str
    host: str
    dev_class: str
    exported: bool
    pid: int


def parse_import(longs: Sequence[int], strings: Sequence[str]) -> Imported:
    """:raises BadReply: the lists are too short"""
    if len(longs) < 1 or len(strings) < 5:
        raise BadReply(f"no answer to {IMPORT}: {list(longs)[:10]}, {list(strings)[:10]}")
    name, ior, version, server, host = strings[:5]
    dev_class, pid = strings[5] if len(strings) > 5 else "", int(longs[1]) if len(longs) > 1 else 0
    return Imported(name, ior, version, server, host, dev_class, bool(longs[0]), pid)
