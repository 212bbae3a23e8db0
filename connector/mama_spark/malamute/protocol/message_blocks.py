"""Encodes several STREAM SENDs as one command, because a frame costs more than a small message. Pure.

If client and broker both have :attr:`~.extensions.Feature.BLOCKS`, the client may send a STREAM SEND with an empty
subject, the extension ``block`` (number of messages) and three content frames: the lengths (number-4 each) of all
command frames of these messages, then of all contents; these command frames, joined; the contents, joined. It
represents these messages, in order; each has one content frame. Its cost (:mod:`.credit`) is its own bytes plus the
overhead of each message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple, cast

from . import commands as wire
from .commands import BadFrame
from .extensions import NO_EXTENSION, Extension, only_id, read, write

MOST = 8192
_SEND = wire.SIGNATURE + bytes([wire.StreamSend.id])


def pack(count: int, lengths: bytes, commands: bytes, contents: bytes) -> list[bytes]:
    """Encode a block of 1 to :data:`MOST` messages; ``lengths``: of command frames, then of contents, as number-4."""
    return wire.encode(wire.StreamSend(b"", (lengths, commands, contents), write(Extension(block=count))))


class MessageBlock(NamedTuple):
    """Messages with one content frame each, as columns. ``ids``: empty for a message without id; None = no message has
    one. ``extensions``: None = the messages have no extension fields but ids."""

    subjects: list[bytes]
    contents: list[bytes]
    ids: list[bytes] | None = None
    extensions: list[Extension] | None = None

    def messages(self) -> Iterator[tuple[bytes, tuple[bytes], Extension]]:
        """Subject, content and extension of each."""
        extensions: Iterable[Extension] = self.extensions or repeat(NO_EXTENSION)
        if self.extensions is None and self.ids is not None:
            extensions = (Extension(message_id=one) if one else NO_EXTENSION for one in self.ids)
        return zip(self.subjects, zip(self.contents, strict=True), extensions, strict=False)


def unpack(count: int, content: Sequence[bytes]) -> MessageBlock:
    """Decode the messages of a block.

    :raises BadFrame: it is no block of ``count`` messages, or one of them is no STREAM SEND
    """
    if len(content) != 3 or not 0 < count <= MOST or len(content[0]) != 8 * count:
        raise BadFrame("a block that is none")
    lengths = struct.unpack(f">{2 * count}I", content[0])
    commands, contents = _split(content[1], lengths[:count]), _split(content[2], lengths[count:])
    heads: dict[bytes, bytes] = {}  # cache: command frame up to the end of the subject -> subject
    subjects: list[bytes] = []
    rests: list[bytes] = []
    for command in commands:
        end = 4 + command[3] if len(command) > 3 else 4
        head = command[:end]
        subject = heads.get(head)
        if subject is None:
            subject = head[4:]
            if len(head) < end or not head.startswith(_SEND) or 0 in subject:
                raise BadFrame("a message of a block is no STREAM SEND")
            heads[head] = subject
        subjects.append(subject)
        rests.append(command[end:])
    if not any(rests):
        return MessageBlock(subjects, contents)
    ids = list(map(only_id, rests))
    if None not in ids:
        return MessageBlock(subjects, contents, cast("list[bytes]", ids))
    extensions = list(map(read, rests))
    return MessageBlock(subjects, contents, [one.message_id for one in extensions], extensions)


def _split(block_bytes: bytes, lengths: Sequence[int]) -> list[bytes]:
    ends = list(accumulate(lengths))
    if ends[-1] != len(block_bytes):
        raise BadFrame("a block whose lengths do not fit")
    return [block_bytes[start:end] for start, end in zip([0, *ends], ends, strict=False)]
