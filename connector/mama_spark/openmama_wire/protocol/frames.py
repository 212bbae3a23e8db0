"""Frames of OpenMAMA's two ZeroMQ bridges: one ZeroMQ frame per message.

===========  ==============================================  =====================================================
part         ``zmq`` (and NNG)                               ``oz``
===========  ==============================================  =====================================================
topic, NUL   yes                                             yes
reserved     8 bytes, written as 0, ignored                  none
type byte    0 publish, 1 inbox request, 2 inbox response    1 publish, 2 inbox request, 3 inbox reply
addresses    request: reply inbox, NUL; response: subject,   request: reply address, NUL; others: NUL
             NUL
payload      first byte selects the payload library          same
===========  ==============================================  =====================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mama_spark.mama.messages.omnm import BadMessage

ZMQ, OZ = "zmq", "oz"
_RESERVED = bytes(8)


class FrameType(StrEnum):
    PUBLISH = "pubsub"
    REQUEST = "inbox_request"
    REPLY = "inbox_reply"  #: ``zmq`` calls it a response


_NUMBERS = {
    ZMQ: {FrameType.PUBLISH: 0, FrameType.REQUEST: 1, FrameType.REPLY: 2},
    OZ: {FrameType.PUBLISH: 1, FrameType.REQUEST: 2, FrameType.REPLY: 3},
}
_TYPES = {framing: {number: kind for kind, number in numbers.items()} for framing, numbers in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class BridgeFrame:
    """One message on the wire.

    :ivar address: reply address (request); subject of the request (reply over ``zmq``); else empty
    """

    type: FrameType
    topic: str
    payload: bytes
    address: str = ""


def number_of(framing: str, kind: FrameType) -> int:
    """The type byte."""
    return _NUMBERS[framing][kind]


def decode_frame(framing: str, data: bytes) -> BridgeFrame:
    """:raises BadMessage: for bytes that are no frame of this framing"""
    topic, at = _text(data, 0, "topic")
    if framing == ZMQ:
        at += len(_RESERVED)
    if at >= len(data):
        raise BadMessage("the frame ends inside its header")
    kind = _TYPES[framing].get(data[at])
    if kind is None:
        raise BadMessage(f"{data[at]} is no type of a frame")
    address, at = "", at + 1
    if framing == OZ or kind is not FrameType.PUBLISH:
        address, at = _text(data, at, "address")
    if bool(address) != _has_address(framing, kind):
        raise BadMessage(f"{kind.value} {'with' if address else 'without'} an address")
    if at >= len(data):
        raise BadMessage("the frame has no payload")
    return BridgeFrame(kind, topic, data[at:], address)


def encode_frame(framing: str, frame: BridgeFrame) -> bytes:
    """:raises BadMessage: for a frame that this framing cannot hold"""
    if bool(frame.address) != _has_address(framing, frame.type):
        raise BadMessage(f"{frame.type.value} {'with' if frame.address else 'without'} an address")
    if "\0" in frame.topic + frame.address or not frame.payload:
        raise BadMessage("topic and address hold no NUL, and a payload is needed")
    reserved = _RESERVED if framing == ZMQ else b""
    try:
        topic, address = frame.topic.encode() + b"\0", frame.address.encode() + b"\0"
    except UnicodeEncodeError:
        raise BadMessage("topic and address are UTF-8") from None
    if framing == ZMQ and frame.type is FrameType.PUBLISH:
        address = b""
    return topic + reserved + bytes([number_of(framing, frame.type)]) + address + frame.payload


def _has_address(framing: str, kind: FrameType) -> bool:
    return kind is FrameType.REQUEST or (framing == ZMQ and kind is FrameType.REPLY)


def _text(data: bytes, at: int, what: str) -> tuple[str, int]:
    end = data.find(0, at)
    if end < 0:
        raise BadMessage(f"the {what} is not terminated")
    try:
        return data[at:end].decode(), end + 1
    except UnicodeDecodeError:
        raise BadMessage(f"the {what} is not UTF-8") from None
