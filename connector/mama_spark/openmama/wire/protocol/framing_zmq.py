"""The framing of the older ZeroMQ bridge: topic, NUL, 8 reserved octets, type, address and NUL where there is one,
payload. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from mama_spark.mama.messages.omnm import BadMessage

from .frames import INBOX_PREFIX, BridgeFrame, FrameType, behind_header, octets_of, text_at, type_at

RESERVED = bytes(8)  #: written as 0, and ignored when read
_NUMBERS = {FrameType.PUBLISH: 0, FrameType.REQUEST: 1, FrameType.REPLY: 2}
_TYPES = {number: kind for kind, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class ZmqFraming:
    """A :class:`~mama_spark.openmama.wire.protocol.frames.Framing`.

    Each request has an inbox and a subscription of its own. Real programs end with a fault when they receive a request.
    """

    name: str = "zmq"
    answers_requests: bool = False
    publish_tail: int = 1 + len(RESERVED) + 1

    def decode(self, data: bytes) -> BridgeFrame:
        topic, at = text_at(data, 0, "topic")
        kind = type_at(data, at + len(RESERVED), _TYPES)
        address, at = "", at + len(RESERVED) + 1
        if kind is not FrameType.PUBLISH:
            address, at = text_at(data, at, "address")
            if not address:
                raise BadMessage(f"{kind.value} without an address")
        return BridgeFrame(kind, topic, behind_header(data, at), address)

    def encode(self, frame: BridgeFrame) -> bytes:
        topic, address = octets_of(frame, frame.type is not FrameType.PUBLISH)
        head = topic + RESERVED + bytes((_NUMBERS[frame.type],))
        return head + (b"" if frame.type is FrameType.PUBLISH else address) + frame.payload

    def publish_head(self, topic: str) -> bytes:
        return topic.encode() + b"\0" + RESERVED + bytes((_NUMBERS[FrameType.PUBLISH],))

    def inbox(self, transport: str, number: int) -> str:
        return f"{INBOX_PREFIX}.{uuid.uuid5(uuid.UUID(transport), str(number))}"

    def inbox_subscription(self, transport: str, inbox: str) -> str:
        return inbox
