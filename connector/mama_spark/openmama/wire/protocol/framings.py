"""The framings by name. A framing more is a class more, and its name here. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from mama_spark.mama.messages.omnm import BadMessage

from .frames import INBOX_PREFIX, BridgeFrame, FrameType, Framing, behind_header, octets_of, text_at, type_at

__all__ = ["FRAMINGS", "OZ", "ZMQ", "BadMessage", "BridgeFrame", "FrameType", "Framing"]

_OZ = {FrameType.PUBLISH: 1, FrameType.REQUEST: 2, FrameType.REPLY: 3}
_OZ_TYPES = {number: kind for kind, number in _OZ.items()}
_OZ_PUBLISH = bytes((0, _OZ[FrameType.PUBLISH], 0))
_ZMQ = {FrameType.PUBLISH: 0, FrameType.REQUEST: 1, FrameType.REPLY: 2}
_ZMQ_TYPES = {number: kind for kind, number in _ZMQ.items()}
_RESERVED = bytes(8)  #: written as 0, and ignored when read


@dataclass(frozen=True, slots=True)
class OzFraming:
    """OZ, the maintained bridge: topic, NUL, type, address, NUL, payload.

    A transport has one subscription, ``_INBOX.<uuid>``, for the replies to all its requests.
    """

    name: str = "oz"
    answers_requests: bool = True
    publish_tail: int = len(_OZ_PUBLISH)

    def decode(self, data: bytes) -> BridgeFrame:
        topic, at = text_at(data, 0, "topic")
        kind = type_at(data, at, _OZ_TYPES)
        address, at = text_at(data, at + 1, "address")
        if bool(address) != (kind is FrameType.REQUEST):
            raise BadMessage(f"{kind.value} {'with' if address else 'without'} an address")
        return BridgeFrame(kind, topic, behind_header(data, at), address)

    def encode(self, frame: BridgeFrame) -> bytes:
        topic, address = octets_of(frame, frame.type is FrameType.REQUEST)
        return topic + bytes((_OZ[frame.type],)) + address + frame.payload

    def publish_head(self, topic: str) -> bytes:
        return topic.encode() + _OZ_PUBLISH

    def inbox(self, transport: str, number: int) -> str:
        return f"{INBOX_PREFIX}.{transport}.{number:016x}"

    def inbox_subscription(self, transport: str, inbox: str) -> str:
        return f"{INBOX_PREFIX}.{transport}"


@dataclass(frozen=True, slots=True)
class ZmqFraming:
    """The older ZeroMQ bridge: topic, NUL, 8 reserved bytes, type, address and NUL where there is one, payload.

    Each request has an inbox and a subscription of its own. Real programs end with a fault when they receive a request.
    """

    name: str = "zmq"
    answers_requests: bool = False
    publish_tail: int = 1 + len(_RESERVED) + 1

    def decode(self, data: bytes) -> BridgeFrame:
        topic, at = text_at(data, 0, "topic")
        kind = type_at(data, at + len(_RESERVED), _ZMQ_TYPES)
        address, at = "", at + len(_RESERVED) + 1
        if kind is not FrameType.PUBLISH:
            address, at = text_at(data, at, "address")
            if not address:
                raise BadMessage(f"{kind.value} without an address")
        return BridgeFrame(kind, topic, behind_header(data, at), address)

    def encode(self, frame: BridgeFrame) -> bytes:
        topic, address = octets_of(frame, frame.type is not FrameType.PUBLISH)
        head = topic + _RESERVED + bytes((_ZMQ[frame.type],))
        return head + (b"" if frame.type is FrameType.PUBLISH else address) + frame.payload

    def publish_head(self, topic: str) -> bytes:
        return topic.encode() + b"\0" + _RESERVED + bytes((_ZMQ[FrameType.PUBLISH],))

    def inbox(self, transport: str, number: int) -> str:
        return f"{INBOX_PREFIX}.{uuid.uuid5(uuid.UUID(transport), str(number))}"

    def inbox_subscription(self, transport: str, inbox: str) -> str:
        return inbox


OZ, ZMQ = OzFraming(), ZmqFraming()
FRAMINGS: dict[str, Framing] = {framing.name: framing for framing in (OZ, ZMQ)}
