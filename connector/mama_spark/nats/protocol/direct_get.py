"""Messages of a stream as a direct get returns them (NATS ADR-31): headers say sequence, time and subject. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

SOURCED = "Nats-Stream-Source"  #: set by the server: stream and sequence that a message was sourced from
_MOST_DIGITS = 19
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE = ("Nats-Sequence", "Nats-Time-Stamp", "Nats-Subject")
_ABOUT = ("Nats-Stream", "Nats-Num-Pending", "Nats-Last-Sequence")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a stream.

    :ivar time: time of storage at the server (RFC 3339 text)
    :ivar block: header block, as it was stored; only from the leader of the stream
    """

    sequence: int
    time: str
    subject: str
    payload: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    block: bytes = b""

    @property
    def at(self) -> int:
        """Microseconds since the epoch; 0 for a time that cannot be read."""
        return micros(self.time)

    @property
    def sourced(self) -> int:
        """Its sequence in the stream that it was sourced from; 0 if it was not sourced."""
        words = self.headers.get(SOURCED, "").split()
        return int(words[1]) if len(words) > 1 and is_sequence(words[1]) else 0


def is_sequence(text: str) -> bool:
    """Whether the value of a header is a number of at most 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def micros(time: str) -> int:
    """Microseconds since the epoch of an RFC 3339 time, 0 if it is none."""
    try:
        then = datetime.fromisoformat(time)
    except ValueError:
        return 0
    if then.tzinfo is None:
        return 0
    return (then - _EPOCH) // timedelta(microseconds=1)


def headers_of(block: bytes) -> dict[str, str]:
    """Headers of a block; of several with one name the last one. Invalid UTF-8 becomes U+FFFD."""
    lines = block.decode(errors="replace").split("\r\n")[1:]
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def stored(headers: dict[str, str], payload: bytes) -> StoredMessage | None:
    """The stored message of a frame; None if ``headers`` have no sequence. Removes those of the direct get."""
    sequence, time, subject = (headers.pop(name, "") for name in _PLACE)
    for name in _ABOUT:
        headers.pop(name, None)
    if not is_sequence(sequence):
        return None
    return StoredMessage(int(sequence), time, subject, payload, headers)
