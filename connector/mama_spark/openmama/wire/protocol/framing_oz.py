"""The framing of OZ, the maintained bridge: topic, NUL, type, address, NUL, payload. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mama_spark.mama.messages.omnm import BadMessage

from .frames import INBOX_PREFIX, BridgeFrame, FrameType, behind_header, octets_of, text_at, type_at

_NUMBERS = {FrameType.PUBLISH: 1, FrameType.REQUEST: 2, FrameType.REPLY: 3}
_TYPES = {number: kind for kind, number in _NUMBERS.items()}
_PUBLISH = bytes((0, _NUMBERS[FrameType.PUBLISH], 0))


@dataclass(frozen=True, slots=True)
class OzFraming:
    """A :class:`~mama_spark.openmama.wire.protocol.frames.Framing`.

    A transport has one subscription, ``_INBOX.<uuid>``, for the replies to all its requests.
    """

    name: str = "oz"
    answers_requests: bool = True
    publish_tail: int = len(_PUBLISH)

    def decode(self, data: bytes) -> BridgeFrame:
        topic, at = text_at(data, 0, "topic")
        kind = type_at(data, at, _TYPES)
        address, at = text_at(data, at + 1, "address")
        if bool(address) != (kind is FrameType.REQUEST):
            raise BadMessage(f"{kind.value} {'with' if address else 'without'} an address")
        return BridgeFrame(kind, topic, behind_header(data, at), address)

    def encode(self, frame: BridgeFrame) -> bytes:
        topic, address = octets_of(frame, frame.type is FrameType.REQUEST)
        return topic + bytes((_NUMBERS[frame.type],)) + address + frame.payload

    def publish_head(self, topic: str) -> bytes:
        return topic.encode() + _PUBLISH

    def inbox(self, transport: str, number: int) -> str:
        return f"{INBOX_PREFIX}.{transport}.{number:016x}"

    def inbox_subscription(self, transport: str, inbox: str) -> str:
        return f"{INBOX_PREFIX}.{transport}"
