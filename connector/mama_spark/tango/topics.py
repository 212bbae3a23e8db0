"""Topics of events and heartbeats, and the endpoints they come from. Pure.

``tango://<host>/<device>/<attribute>[#dbase=no].<[idl5_]event>``, all in lower case. ``#dbase=no`` marks a server
without a database; changes of a device's interface and heartbeats have no attribute. Subscriptions are for prefixes, so
a topic is also the key of a subscription.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..errors import ConfigError, MamaError
from .types import EVENT_NAMES, EventType

SCHEME = "tango://"
NO_DATABASE = "#dbase=no"
HEARTBEAT = "heartbeat"
#: the newest form of data that topics tell apart; IDL 6 did not change it
IDL = 5

_IDL_PREFIX = f"idl{IDL}_"
_HAS_IDL = frozenset((EventType.CHANGE, EventType.PERIODIC, EventType.ARCHIVE, EventType.USER, EventType.ATTR_CONF))
_FORBIDDEN = re.compile(r"[\s#\x00-\x1f]")


class BadEventTopic(MamaError):
    """This is no topic of a Tango event or heartbeat."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic taken apart.

    :ivar tango_host: of the database, or host and port of a server without one
    :ivar attribute: None of a device's interface and of heartbeats; of pipes, the pipe
    :ivar event: None: a heartbeat
    :ivar dbase: the server has a database
    :ivar idl: 5 where the topic says so
    """

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
        """As the first frame."""
        return str(self).encode("latin-1")

    @property
    def prefix(self) -> str:
        """``tango://<host>/``"""
        return f"{SCHEME}{self.tango_host}/"


def event_topic(
    tango_host: str, device: str, attribute: str | None, event: EventType, dbase: bool = True, idl: int = IDL
) -> Topic:
    """The topic that a server publishes to, in lower case.

    :param idl: of client or device, whichever is less
    :raises BadEventTopic: a name cannot stand in a topic
    """
    told = IDL if idl >= IDL and event in _HAS_IDL else None
    name = None if attribute is None or event is EventType.INTERFACE_CHANGE else attribute.lower()
    return parse(str(Topic(tango_host.lower(), device.lower(), name, event, dbase, told)))


def heartbeat_topics(channel: str) -> tuple[str, str]:
    """Both spellings of a server's heartbeat, the given one first: real servers tell the channel without
    ``#dbase=no`` and beat with it.

    :param channel: ``tango://<host>/dserver/<exe>/<instance>``, with or without ``#dbase=no``
    """
    bare = channel.lower().removesuffix(NO_DATABASE)
    spellings = (f"{bare}.{HEARTBEAT}", f"{bare}{NO_DATABASE}.{HEARTBEAT}")
    return spellings if bare == channel.lower() else spellings[::-1]


def parse(text: str) -> Topic:
    """A topic from its text, whatever its case.

    :raises BadEventTopic: it is none
    """
    rest, _, told = text.lower().rpartition(".")
    bare = rest.removesuffix(NO_DATABASE)
    host, *names = bare.removeprefix(SCHEME).split("/")
    if not rest.startswith(SCHEME) or len(names) not in (3, 4) or not all((host, *names)) or _FORBIDDEN.search(bare):
        raise BadEventTopic(f"no topic of Tango: {text[:200]!r}")
    attribute = names[3] if len(names) == 4 else None
    event, idl = _event(told, text)
    wants_attribute = event not in (None, EventType.INTERFACE_CHANGE)
    if wants_attribute is (attribute is None):
        raise BadEventTopic(f"an attribute {'must' if wants_attribute else 'cannot'} stand in {text[:200]!r}")
    return Topic(host, "/".join(names[:3]), attribute, event, len(bare) == len(rest), idl)


def _event(told: str, text: str) -> tuple[EventType | None, int | None]:
    if told == HEARTBEAT:
        return None, None
    event = EVENT_NAMES.get(told)
    if event is not None:
        return event, None
    event = EVENT_NAMES.get(told.removeprefix(_IDL_PREFIX))
    if event not in _HAS_IDL:
        raise BadEventTopic(f"no event of Tango: {told[:50]!r} in {text[:200]!r}")
    return event, IDL


#: Receivers see few topics many times; a sender of many cannot make this grow.
_parse_known = lru_cache(16384)(parse)


def read_topic(frame: bytes) -> Topic:
    """The topic of a first frame; what was seen before costs a tenth.

    :raises BadEventTopic: it is none
    """
    if len(frame) > 4096:
        raise BadEventTopic(f"a topic of {len(frame)} octets")
    try:
        return _parse_known(frame.decode("ascii"))
    except UnicodeDecodeError:
        raise BadEventTopic(f"no topic of Tango: {frame[:200]!r}") from None


# --- where they come from ----------------------------------------------------------------------------------

#: hosts as ZeroMQ takes them, which raises at others
_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.%a-z]+\]|[0-9A-Za-z][0-9A-Za-z._-]*):(?P<port>[0-9]{1,5})")


class BadEndpoint(MamaError):
    """An endpoint that cannot be connected to."""


class MulticastRefused(BadEndpoint, ConfigError):
    """Events by multicast are not supported (TG-32): the server is configured to send this attribute that way."""


def is_multicast(endpoint: str) -> bool:
    """Events come by (encapsulated) PGM."""
    return endpoint.partition("://")[0].lower() in ("epgm", "pgm")


def check_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of an endpoint that a server named (TG-08, TG-32).

    :raises MulticastRefused: it is for multicast
    :raises BadEndpoint: it is no ``tcp://host:port``
    """
    if is_multicast(endpoint):
        raise MulticastRefused(f"events by multicast are not supported: {endpoint[:200]}")
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise BadEndpoint(f"no tcp://host:port: {endpoint[:200]!r}")
    return found["host"].strip("[]"), int(found["port"])
