"""One message of OpenMAMA's ZeroMQ bridges, and what a framing must be able to do. Pure.

The bridges put the same parts into one ZeroMQ frame a message, in different octets. Nothing on the wire tells their
framings apart: a network has one, and its peers are told which.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mama_spark.contracts.topics import why_unpublishable
from mama_spark.mama.messages.omnm import BadMessage

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


class Framing(Protocol):
    """How one bridge makes octets of a message. Pure.

    :ivar name: as in URLs
    :ivar answers_requests: real programs of this framing survive a request
    :ivar publish_tail: octets between topic and payload of a published message, the topic's NUL included
    """

    @property
    def name(self) -> str: ...

    @property
    def answers_requests(self) -> bool: ...

    @property
    def publish_tail(self) -> int: ...

    def decode(self, data: bytes) -> BridgeFrame:
        """:raises BadMessage: for octets that are no frame of this framing"""
        ...

    def encode(self, frame: BridgeFrame) -> bytes:
        """:raises BadMessage: for a frame that this framing cannot hold"""
        ...

    def publish_head(self, topic: str) -> bytes:
        """What stands before the payload of a published message."""
        ...

    def inbox(self, transport: str, number: int) -> str:
        """Topic that replies to one request go to.

        :param transport: uuid of the requesting transport
        :param number: of the request; counts from 1
        """
        ...

    def inbox_subscription(self, transport: str, inbox: str) -> str:
        """What the requester subscribes to for the replies: one subscription for all inboxes, or one each."""
        ...


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


def text_at(data: bytes, at: int, what: str) -> tuple[str, int]:
    """The NUL-terminated text at an offset, and the offset behind it.

    :raises BadMessage: it has no end, or is not UTF-8
    """
    end = data.find(0, at)
    if end < 0:
        raise BadMessage(f"the {what} is not terminated")
    try:
        return data[at:end].decode(), end + 1
    except UnicodeDecodeError:
        raise BadMessage(f"the {what} is not UTF-8") from None


def octets_of(frame: BridgeFrame, needs_address: bool) -> tuple[bytes, bytes]:
    """Topic and address, each with its NUL.

    :raises BadMessage: one is missing, is too many, or cannot be encoded
    """
    if bool(frame.address) != needs_address:
        raise BadMessage(f"{frame.type.value} {'with' if frame.address else 'without'} an address")
    if "\0" in frame.topic + frame.address or not frame.payload:
        raise BadMessage("topic and address hold no NUL, and a payload is needed")
    try:
        return frame.topic.encode() + b"\0", frame.address.encode() + b"\0"
    except UnicodeEncodeError:
        raise BadMessage("topic and address are UTF-8") from None


def behind_header(data: bytes, at: int) -> bytes:
    """The payload at an offset.

    :raises BadMessage: there is none
    """
    if at >= len(data):
        raise BadMessage("the frame has no payload")
    return data[at:]


def type_at(data: bytes, at: int, types: dict[int, FrameType]) -> FrameType:
    """:raises BadMessage: the frame ends there, or has no type that ``types`` lists"""
    if at >= len(data):
        raise BadMessage("the frame ends inside its header")
    found = types.get(data[at])
    if found is None:
        raise BadMessage(f"{data[at]} is no type of a frame")
    return found
