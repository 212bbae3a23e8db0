"""Arguments and results of the admin device commands that negotiate subscriptions (TG-09, TG-10, TG-26). Pure.

They are lists of strings and numbers; the position of an element gives its meaning. Releases of Tango appended
elements.
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
ACTION = "subscribe"  #: the only action; no command unsubscribes
INFO = "info"  #: as the only argument: the command returns the endpoints as text
_IDL_PREFIX = "idl5_"


def _event(text: str) -> tuple[EventType, bool]:
    """Event type, and whether its name has the prefix that reconnecting clients add."""
    name = text.lower()
    event = EVENT_NAMES.get(name.removeprefix(_IDL_PREFIX))
    if event is None or event is EventType.QUALITY:
        desc = f"The event type {text!r} is unknown"
        raise refusal("API_WrongNumberOfArgs", desc, "ZmqEventSubscriptionChange")
    return event, name.startswith(_IDL_PREFIX)


@dataclass(frozen=True, slots=True)
class SubscriberInfo:
    """SUBSCRIBER_INFO (TG-09).

    :ivar attribute: name of an attribute or a pipe; ignored for interface changes, and may be empty there
    :ivar idl: newest IDL version that the client decodes; cppTango sends 0 when it reconnects
    :ivar prefixed: the name of the event had the prefix ``idl5_``
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
        """Parse the argument of a client. A client that sends no IDL version decodes IDL 4.

        :raises DevFailed: API_WrongNumberOfArgs, as in cppTango: the argument is invalid
        """
        if len(argin) not in (4, 5):
            raise refusal("API_WrongNumberOfArgs", f"The command has {len(argin)} arguments; it must have 5", SUBSCRIBE)
        event, prefixed = _event(argin[3])
        version = argin[4] if len(argin) == 5 else "4"
        if not version.isdecimal() or len(version) > 4:
            raise refusal("API_WrongNumberOfArgs", f"The IDL version {version!r:.50} is no number", SUBSCRIBE)
        return cls(argin[0].lower(), argin[1].lower(), event, int(version), argin[2].lower(), prefixed)


class EndpointPair(NamedTuple):
    """ZeroMQ endpoints of heartbeats and events (TG-08, TG-31)."""

    heartbeat: str
    event: str


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """SUBSCRIPTION_INFO (TG-10, TG-28).

    :ivar release: release of the server's Tango library; 1033 is 10.3.3
    :ivar hwm: high-water mark that the subscriber is to set
    :ivar rate: rate of multicast; undefined if the server has no database, as is ``ivl``, its interval
    :ivar zmq: release of the server's ZeroMQ; 435 is 4.3.5; 0: unknown
    :ivar endpoints: the preferred pair, then alternates (TG-33)
    :ivar topic: topic of the events (EVENT_CHANNEL, TG-35); None: the server is old, see :meth:`completed`
    :ivar channel: topic of the heartbeats without ``.heartbeat`` (HEARTBEAT_CHANNEL, TG-36); None as for ``topic``
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
        """Parse the result of a server. Servers before 9.3, and JTango, send no topics after the endpoints; the list
        itself shows whether it has topics, the release number does not.

        :raises BadReply: the result has no pairs of endpoints
        """
        named = len(strings) > 1 and strings[-1].lower().startswith(SCHEME)
        endpoints = list(strings[:-2] if named else strings)
        if (
            len(longs) < 3
            or not endpoints
            or len(endpoints) % 2
            or not all("://" in endpoint for endpoint in endpoints)
        ):
            found = f"{list(longs)[:10]}, {list(strings)[:10]}"
            raise BadReply(f"the result of {SUBSCRIBE} has no pairs of endpoints: {found}")
        topic, channel = strings[-2:] if named else (None, None)
        release, idl, hwm, rate, ivl, zmq = [int(n) for n in longs[:6]] + [0] * (6 - len(longs))
        pairs = tuple(EndpointPair(*endpoints[i : i + 2]) for i in range(0, len(endpoints), 2))
        return cls(release, idl, hwm, rate, ivl, zmq, pairs, topic, channel)

    def completed(self, tango_host: str, dbase: bool, subscriber: SubscriberInfo, admin: str) -> SubscriptionInfo:
        """Add topic and channel, which clients of servers before 9.3 construct themselves; ``tango_host`` is that of
        topics: ``host:port`` of the database, or without one of the server."""
        if self.topic is not None:
            return self
        idl = min(subscriber.idl, self.device_idl)
        topic = event_topic(tango_host, subscriber.device, subscriber.attribute, subscriber.event, dbase, idl)
        channel = f"{SCHEME}{tango_host}/{admin}".lower() + ("" if dbase else NO_DATABASE)
        return replace(self, topic=str(topic), channel=channel)


class Confirmation(NamedTuple):
    """Confirmation of one subscription (TG-37); ``event`` is as in the topic, such as ``idl5_change``."""

    device: str
    attribute: str
    event: str


def confirm_argin(subscriptions: Sequence[Confirmation]) -> list[str]:
    """Argument of ``EventConfirmSubscription``: all subscriptions of a channel at once."""
    return [text for subscription in subscriptions for text in subscription]


def parse_confirm(argin: Sequence[str]) -> list[Confirmation]:
    """The inverse of :func:`confirm_argin`.

    :raises DevFailed: API_WrongNumberOfArgs: the number of arguments is not a multiple of 3
    """
    if not argin or len(argin) % 3:
        desc = f"The command has {len(argin)} arguments; it must have 3 for each subscription"
        raise refusal("API_WrongNumberOfArgs", desc, CONFIRM)
    return [Confirmation(*argin[i : i + 3]) for i in range(0, len(argin), 3)]


class Imported(NamedTuple):
    """Result of ``DbImportDevice``: where a device is reached, its server, and whether that runs."""

    ior: str
    server: str
    exported: bool


def parse_import(longs: Sequence[int], strings: Sequence[str]) -> Imported:
    """Parse the result of ``DbImportDevice``.

    :raises BadReply: the lists are too short
    """
    if len(longs) < 1 or len(strings) < 5:
        raise BadReply(f"the result of {IMPORT} is too short: {list(longs)[:10]}, {list(strings)[:10]}")
    return Imported(strings[1], strings[3], bool(longs[0]))
