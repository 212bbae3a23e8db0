"""Topics of events and heartbeats, and endpoints. Pure.

``tango://<host>/<device>/<attribute>[#dbase=no].<[idl5_]event>``, all in lower case. ``#dbase=no`` marks a server
without a database; interface changes and heartbeats have no attribute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..contracts.errors import ConfigError, MamaError
from .types import EVENT_NAMES, EventType

SCHEME = "tango://"
NO_DATABASE = "#dbase=no"
HEARTBEAT = "heartbeat"
#: newest IDL version of data in topics; IDL 6 did not change it
IDL = 5

_IDL_PREFIX = f"idl{IDL}_"
#: Event types whose data exist in several versions of the IDL, which their topics name.
VERSIONED = frozenset((EventType.CHANGE, EventType.PERIODIC, EventType.ARCHIVE, EventType.USER, EventType.ATTR_CONF))
#: Printable ASCII without the characters, and the arrow, that Tango reserves.
_NAME = re.compile(r"(?!.*->)[!\"$-.0-9;-~]+")
_MEANS_MORE = frozenset(".*?>")  #: in topics of records, and in patterns of devices and topics


class BadEventTopic(MamaError):
    """A topic of neither a Tango event nor a heartbeat."""


def is_name(text: str) -> bool:
    """Whether Tango allows it as an attribute, or as a part of the name of a device."""
    return _NAME.fullmatch(text) is not None


def is_publishable(name: str) -> bool:
    """Whether it is a name (:func:`is_name`) that rows and sources of ours may have."""
    return is_name(name) and _MEANS_MORE.isdisjoint(name)


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic; of a heartbeat, ``event`` is None. ``tango_host``: address of the database, or host and port of a
    server without one; ``attribute``: or pipe; None of interface changes and heartbeats."""

    tango_host: str
    device: str
    attribute: str | None
    event: EventType | None
    dbase: bool = True
    idl: int | None = None

    def __str__(self) -> str:
        name = HEARTBEAT if self.event is None else self.event.wire_name
        attribute = "" if self.attribute is None else f"/{self.attribute}"
        suffix = "" if self.dbase else NO_DATABASE
        idl = "" if self.idl is None else _IDL_PREFIX
        return f"{SCHEME}{self.tango_host}/{self.device}{attribute}{suffix}.{idl}{name}"

    def encode(self) -> bytes:
        return str(self).encode("latin-1")


def event_topic(
    tango_host: str, device: str, attribute: str | None, event: EventType, dbase: bool = True, idl: int = IDL
) -> Topic:
    """The topic that a server publishes to, in lower case.

    :param idl: version of client or device, whichever is lower
    :raises BadEventTopic: a name is not allowed in topics
    """
    version = IDL if idl >= IDL and event in VERSIONED else None
    name = None if attribute is None or event is EventType.INTERFACE_CHANGE else attribute.lower()
    return parse(str(Topic(tango_host.lower(), device.lower(), name, event, dbase, version)))


def heartbeat_topics(channel: str) -> tuple[str, str]:
    """Both spellings of the topic of a server's heartbeats, the given one first: servers name the channel
    ``tango://<host>/dserver/<exe>/<instance>`` without ``#dbase=no``, and send heartbeats with it."""
    bare = channel.lower().removesuffix(NO_DATABASE)
    spellings = (f"{bare}.{HEARTBEAT}", f"{bare}{NO_DATABASE}.{HEARTBEAT}")
    return spellings if bare == channel.lower() else spellings[::-1]


def parse(text: str) -> Topic:
    """Parse a topic, in any case.

    :raises BadEventTopic: it is no topic
    """
    rest, _, name_part = text.lower().rpartition(".")
    bare = rest.removesuffix(NO_DATABASE)
    host, *names = bare.removeprefix(SCHEME).split("/")
    allowed = all(map(is_name, (host.replace(":", ""), *names)))
    if not rest.startswith(SCHEME) or len(names) not in (3, 4) or not allowed:
        raise BadEventTopic(f"no topic of Tango: {text[:200]!r}")
    attribute = names[3] if len(names) == 4 else None
    event, idl = _event(name_part, text)
    wants_attribute = event not in (None, EventType.INTERFACE_CHANGE)
    if wants_attribute is (attribute is None):
        raise BadEventTopic(f"an attribute {'must' if wants_attribute else 'cannot'} stand in {text[:200]!r}")
    return Topic(host, "/".join(names[:3]), attribute, event, len(bare) == len(rest), idl)


def _event(name_part: str, text: str) -> tuple[EventType | None, int | None]:
    if name_part == HEARTBEAT:
        return None, None
    event = EVENT_NAMES.get(name_part)
    if event is not None:
        return event, None
    event = EVENT_NAMES.get(name_part.removeprefix(_IDL_PREFIX))
    if event not in VERSIONED:
        raise BadEventTopic(f"no event of Tango: {name_part[:50]!r} in {text[:200]!r}")
    return event, IDL


#: Receivers see few topics many times; the bound is for senders of many.
_parse_known = lru_cache(16384)(parse)


def read_topic(frame: bytes) -> Topic:
    """Parse the first frame; known topics are cached.

    :raises BadEventTopic: it is no topic
    """
    if len(frame) > 4096:
        raise BadEventTopic(f"a topic of {len(frame)} bytes")
    try:
        return _parse_known(frame.decode("ascii"))
    except UnicodeDecodeError:
        raise BadEventTopic(f"no topic of Tango: {frame[:200]!r}") from None


#: Only hosts that ZeroMQ accepts.
_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.%a-z]+\]|[0-9A-Za-z][0-9A-Za-z._-]*):(?P<port>[0-9]{1,5})")


class BadEndpoint(MamaError):
    """An endpoint that cannot be connected to."""


class MulticastRefused(BadEndpoint, ConfigError):
    """Events by multicast are not supported (TG-32): the server is configured to send this attribute that way."""


def is_multicast(endpoint: str) -> bool:
    """Whether the endpoint is for (encapsulated) PGM."""
    return endpoint.partition("://")[0].lower() in ("epgm", "pgm")


def check_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of an endpoint (TG-08, TG-32).

    :raises MulticastRefused: it is for multicast
    :raises BadEndpoint: it is no ``tcp://host:port``
    """
    if is_multicast(endpoint):
        raise MulticastRefused(f"events by multicast are not supported: {endpoint[:200]}")
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise BadEndpoint(f"no tcp://host:port: {endpoint[:200]!r}")
    return found["host"].strip("[]"), int(found["port"])
