"""Frames of the OZ naming protocol, by which OpenMAMA peers find each other: 882 bytes, padded with NUL. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from mama_spark.mama.messages.omnm import BadMessage

from .frames import text_at

NAMING_TOPIC = "_NAMING"
WELCOME, CONNECT, BEACON, DISCONNECT = "W", "C", "c", "D"

_LAYOUT = struct.Struct("<257sc257s65sq37s257s")  # Linux on x86-64
SIZE = _LAYOUT.size


SUSPECT_AFTER, OFFLINE_AFTER = 5.0, 15.0  #: seconds without a word of a peer


class PeerPresence(IntEnum):
    """Presence of a peer; the numbers are those of records."""

    ONLINE = 1
    SUSPECT = 2  #: nothing was heard of it for :data:`SUSPECT_AFTER`
    OFFLINE = 3  #: it took its leave, or nothing was heard of it for :data:`OFFLINE_AFTER`


@dataclass(frozen=True, slots=True)
class NamingFrame:
    """Identity and endpoint of a peer process; has no source names.

    :ivar type: :data:`WELCOME` (from the name server), :data:`CONNECT`, :data:`BEACON` or :data:`DISCONNECT`
    :ivar uuid: UUID of the transport; empty in a welcome
    :ivar endpoint: endpoint of the peer's publishing socket; in a welcome, of the name server's subscribing socket
    """

    type: str
    program: str
    host: str
    pid: int
    uuid: str
    endpoint: str


def decode_naming(data: bytes) -> NamingFrame:
    """A naming frame from its bytes.

    :raises BadMessage: for bytes that are no naming frame
    """
    if len(data) != SIZE:
        raise BadMessage(f"a naming frame has {SIZE} bytes, not {len(data)}")
    topic, kind, program, host, pid, uuid, endpoint = _LAYOUT.unpack(data)
    if text_at(topic, 0, "topic")[0] != NAMING_TOPIC:
        raise BadMessage(f"the topic of a naming frame is {NAMING_TOPIC}")
    padded = {"program": program, "host": host, "uuid": uuid, "endpoint": endpoint}
    texts = {what: text_at(text_bytes, 0, what)[0] for what, text_bytes in padded.items()}
    frame = NamingFrame(type=kind.decode("latin-1"), pid=pid, **texts)
    _check(frame)
    return frame


def encode_naming(frame: NamingFrame) -> bytes:
    """The :data:`SIZE` bytes of a naming frame.

    :raises BadMessage: a value does not fit; the type is unknown; endpoint or uuid is missing
    """
    _check(frame)
    try:
        return _LAYOUT.pack(
            NAMING_TOPIC.encode(), frame.type.encode(), _bytes(frame.program, 257), _bytes(frame.host, 65),
            frame.pid, _bytes(frame.uuid, 37), _bytes(frame.endpoint, 257),
        )  # fmt: skip
    except struct.error:
        raise BadMessage(f"pid {frame.pid} does not fit in 64 bits") from None


def _check(frame: NamingFrame) -> None:
    if frame.type not in (WELCOME, CONNECT, BEACON, DISCONNECT):
        raise BadMessage(f"{frame.type!r} is no type of a naming frame")
    if not frame.endpoint:
        raise BadMessage("the endpoint is missing")
    if not frame.uuid and frame.type != WELCOME:
        raise BadMessage("the uuid is missing")


def _bytes(text: str, size: int) -> bytes:
    try:
        text_bytes = text.encode()
    except UnicodeEncodeError:
        raise BadMessage(f"{text!r} is not UTF-8") from None
    if len(text_bytes) >= size or b"\0" in text_bytes:
        raise BadMessage(f"{text!r} does not fit in {size - 1} bytes, or holds a NUL")
    return text_bytes
