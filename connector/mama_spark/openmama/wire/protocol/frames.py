"""One message of OpenMAMA's ZeroMQ bridges. Pure.

The bridges put the same parts into one ZeroMQ frame a message, in different octets. Nothing on the wire tells their
framings apart: a network has one, and its peers are told which.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mama_spark.contracts.topics import why_unpublishable

MAX_TOPIC = 255  #: octets of a topic, without its NUL
INBOX_PREFIX = "_INBOX"
#: Topics that begin so are not for messages of applications.
RESERVED_PREFIXES = (INBOX_PREFIX, "_NAMING")


class FrameType(StrEnum):
    PUBLISH = "pubsub"
    REQUEST = "inbox_request"
    REPLY = "inbox_reply"  #: ``zmq`` calls it a response


@dataclass(frozen=True, slots=True)
class BridgeFrame:
    """One message on the wire.

    :ivar address: reply address (request); subject of the request (reply over ``zmq``); else empty
    """

    type: FrameType
    topic: str
    payload: bytes
    address: str = ""


def why_unsendable(topic: str) -> str | None:
    """Why no message can be sent to this topic, for people; None = one can."""
    if (fault := why_unpublishable(topic)) is not None:
        return fault
    if topic.startswith(RESERVED_PREFIXES):
        return f"topic {topic!r}: topics that begin with {' or '.join(RESERVED_PREFIXES)} are OpenMAMA's own"
    size = len(topic.encode("utf-8", "surrogatepass"))
    return f"topic of {size} bytes, the most is {MAX_TOPIC}" if size > MAX_TOPIC else None


def payload_fault(payload: bytes) -> str | None:
    """Why a payload is no OMNM message, from its first octet, for people; None = it may be one."""
    if payload[:1] == b"O":
        return None
    if payload[:1] == b"Q":
        return (
            "the payload is of Qpid (id Q): the sending program runs without mama.payload.default=omnmmsg in its "
            "mama.properties"
        )
    return f"the payload has the id {payload[:1]!r}, OMNM has b'O'" if payload else "the payload is empty"
