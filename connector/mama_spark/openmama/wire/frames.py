"""One message of OpenMAMA's ZeroMQ bridges, and the framings by name: how each bridge makes bytes of it. Pure.

The bridges put the same parts into one ZeroMQ frame a message, in different bytes. Nothing on the wire tells their
framings apart: a network has one, and its peers are told which.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum

from mama_spark.contracts.topics import why_unpublishable
from mama_spark.mama.messages.omnm import BadMessage

MAX_TOPIC = 255  #: bytes of a topic, without its NUL
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
    """Why no message can be sent to this topic, for people; None: one can."""
    if (fault := why_unpublishable(topic)) is not None:
        return fault
    if topic.startswith(RESERVED_PREFIXES):
        return f"topic {topic!r}: topics that begin with {' or '.join(RESERVED_PREFIXES)} are OpenMAMA's own"
    size = len(topic.encode("utf-8", "surrogatepass"))
    return f"topic of {size} bytes, the most is {MAX_TOPIC}" if size > MAX_TOPIC else None


def payload_fault(payload: bytes) -> str | None:
    """Why a payload is no OMNM message, from its first byte, for people; None: it may be one."""
    if payload[:1] == b"O":
        return None
    if payload[:1] == b"Q":
        return (
            "the payload is of Qpid (id Q): the sending program runs without mama.payload.default=omnmmsg in its "
            "mama.properties"
        )
    return f"the payload has the id {payload[:1]!r}, OMNM has b'O'" if payload else "the payload is empty"


@dataclass(frozen=True)
class Framing:
    """Topic, NUL, reserved bytes, type, address and NUL where there is one, payload.

    :ivar name: name as in URLs
    :ivar types: number of each type
    :ivar addressed: types with an address
    :ivar reserved: bytes that are written as 0, and ignored when they are read
    :ivar empty_address: other types have an empty address, with its NUL
    :ivar shared_inbox: a transport has one subscription for the replies to all its requests, ``_INBOX.<uuid>``; else
        each request has an inbox and a subscription of its own
    :ivar answers_requests: real programs of this framing survive a request
    """

    name: str
    types: tuple[FrameType | None, ...]
    addressed: frozenset[FrameType]
    reserved: int
    empty_address: bool
    shared_inbox: bool
    answers_requests: bool

    @property
    def publish_tail(self) -> int:
        """Bytes between topic and payload of a published message, the topic's NUL included."""
        return len(self.publish_head(""))

    def decode(self, data: bytes) -> BridgeFrame:
        """A frame from its bytes.

        :raises BadMessage: for bytes that are no frame of this framing
        """
        topic, at = text_at(data, 0, "topic")
        at += self.reserved
        if at >= len(data):
            raise BadMessage("the frame ends inside its header")
        kind = self.types[data[at]] if data[at] < len(self.types) else None
        if kind is None:
            raise BadMessage(f"{data[at]} is no type of a frame")
        address, at = "", at + 1
        if self.empty_address or kind in self.addressed:
            address, at = text_at(data, at, "address")
        self._check_address(kind, address)
        if at >= len(data):
            raise BadMessage("the frame has no payload")
        return BridgeFrame(kind, topic, data[at:], address)

    def encode(self, frame: BridgeFrame) -> bytes:
        """The bytes of a frame.

        :raises BadMessage: for a frame that this framing cannot hold
        """
        self._check_address(frame.type, frame.address)
        if "\0" in frame.topic + frame.address or not frame.payload:
            raise BadMessage("topic and address hold no NUL, and a payload is needed")
        try:
            return self._head(frame.type, frame.topic, frame.address) + frame.payload
        except UnicodeEncodeError:
            raise BadMessage("topic and address are UTF-8") from None

    def publish_head(self, topic: str) -> bytes:
        return self._head(FrameType.PUBLISH, topic, "")

    def _head(self, kind: FrameType, topic: str, address: str) -> bytes:
        end = address.encode() + b"\0" if self.empty_address or kind in self.addressed else b""
        return topic.encode() + bytes((*bytes(1 + self.reserved), self.types.index(kind))) + end

    def _check_address(self, kind: FrameType, address: str) -> None:
        if bool(address) != (kind in self.addressed):
            raise BadMessage(f"{kind.value} {'with' if address else 'without'} an address")

    def inbox(self, transport: str, number: int) -> str:
        """Topic of the replies to one request, whose ``number`` counts from 1; ``transport``: uuid of who requests."""
        if self.shared_inbox:
            return f"{INBOX_PREFIX}.{transport}.{number:016x}"
        return f"{INBOX_PREFIX}.{uuid.uuid5(uuid.UUID(transport), str(number))}"


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


_REQUEST, _REPLY = FrameType.REQUEST, FrameType.REPLY
#: The maintained bridge.
OZ = Framing("oz", (None, FrameType.PUBLISH, _REQUEST, _REPLY), frozenset((_REQUEST,)), 0, True, True, True)
#: The older ZeroMQ bridge. Real programs end with a fault when they receive a request.
ZMQ = Framing("zmq", (FrameType.PUBLISH, _REQUEST, _REPLY), frozenset((_REQUEST, _REPLY)), 8, False, False, False)
FRAMINGS = {framing.name: framing for framing in (OZ, ZMQ)}
