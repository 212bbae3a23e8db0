"""Answers to a direct get of many messages, cut out of the bytes of a connection. Pure.

Each is an ``HMSG`` frame whose header block begins with where the message stands. What ends the answer has a status and
is left to who reads the other frames.
"""

from __future__ import annotations

from ..protocol.parser import MAX_MESSAGE
from .events import StoredMessage

_PLACE = ("Nats-Sequence", "Nats-Time-Stamp", "Nats-Subject")
_ABOUT = ("Nats-Stream", "Nats-Num-Pending", "Nats-Last-Sequence")


class DirectGetParser:
    """:param sid: number of the subscription that the answers come to
    :ivar found: header blocks and payloads
    """

    def __init__(self, sid: int) -> None:
        self._sid = b"%d" % sid
        self.found: list[tuple[bytes, bytes]] = []

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """Take whole answers from ``at`` on.

        :returns: offset of what is none, or is not complete; and how many bytes the answer there still lacks
        """
        while data.startswith(b"HMSG ", at):
            line_end = data.find(b"\r\n", at, at + 4096)
            args = data[at:line_end].split(b" ") if line_end > 0 else []
            if len(args) != 5 or args[2] != self._sid or not all(a.isdigit() and len(a) <= 9 for a in args[3:]):
                break
            width, total = int(args[3]), int(args[4])
            body = line_end + 2
            end = body + total
            if width > total or total > MAX_MESSAGE:
                break
            if end + 2 > len(data):
                return at, end + 2 - len(data)
            if data.startswith(b"NATS/1.0 ", body) or not data.startswith(b"\r\n", end):
                break
            self.found.append((data[body : body + width], data[body + width : end]))
            at = end + 2
        return at, 0


def headers_of(block: bytes) -> dict[str, str]:
    """Headers of a block; of several with one name the last. What is not UTF-8 becomes U+FFFD."""
    lines = block.decode(errors="replace").split("\r\n")[1:]
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def stored(headers: dict[str, str], payload: bytes) -> StoredMessage | None:
    """The message that an answer brings; None if it does not say where it stands.

    :param headers: its own, and those that say where it stands; changed
    """
    sequence, time, subject = (headers.pop(name, "") for name in _PLACE)
    for name in _ABOUT:
        headers.pop(name, None)
    if not (sequence.isascii() and sequence.isdigit()):
        return None
    return StoredMessage(int(sequence), time, subject, payload, headers)
