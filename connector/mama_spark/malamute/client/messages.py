"""Messages as applications see them, and their texts as bytes of the protocol. Pure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mama_spark.contracts.headers import TOO_MANY_HEADERS

from ..protocol import commands
from ..protocol.commands import Command
from ..protocol.extensions import read

Text = str | bytes
logger = logging.getLogger("mama_spark")


@dataclass(frozen=True, slots=True)
class Message:
    """A delivered message.

    :ivar kind: ``stream``, ``mailbox`` or ``service``
    :ivar address: the stream, the mailbox or the service
    :ivar sender: address of the client that sent it, empty for an anonymous one
    :ivar content: frames
    :ivar tracker: of a mailbox or service message whose sender waits for a confirmation
    :ivar sequence: in a stored stream; ``time`` of storage in µs since the epoch
    :ivar headers: (name, value); names may repeat
    """

    kind: str
    address: str
    sender: str
    subject: str
    content: tuple[bytes, ...]
    tracker: str = ""
    sequence: int | None = None
    time: int | None = None
    id: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def message_of(command: Command) -> Message:
    if isinstance(command, commands.StreamDeliver):
        message = Message(
            "stream",
            text_of(command.address),
            text_of(command.sender),
            text_of(command.subject),
            tuple(command.content),
        )
        if not command.trailing:
            return message
        x = read(command.trailing)
        if x.too_many:
            logger.warning("a message of stream %r: %s", message.address, TOO_MANY_HEADERS)
        headers = tuple((text_of(name), text_of(value)) for name, value in x.headers)
        return replace(message, sequence=x.sequence, time=x.time, id=text_of(x.message_id), headers=headers)
    assert isinstance(command, commands.MailboxDeliver | commands.ServiceDeliver)
    kind = "mailbox" if isinstance(command, commands.MailboxDeliver) else "service"
    return Message(
        kind, text_of(command.address), text_of(command.sender), text_of(command.subject), tuple(command.content),
        text_of(command.tracker),
    )  # fmt: skip


def bytes_of(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def text_of(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def quoted(text: Text) -> str:
    return repr(text if isinstance(text, str) else text_of(text))


def frames_of(content: bytes | Sequence[bytes]) -> tuple[bytes, ...]:
    return (content,) if isinstance(content, bytes) else tuple(content)
