"""What the broker knows of a client: the stream written to, subscriptions, offers. Pure.

The broker forgets all of it when it is restarted or the client expires; the client then sends it again.
"""

from __future__ import annotations

from ..protocol import commands as wire
from ..protocol.commands import Command
from ..protocol.extensions import Extension, read, write


class Registrations:
    """The commands of one client that stay in effect.

    :ivar stream: the stream that is written to
    :ivar reads: stream -> pattern -> sequence after which the subscription begins
    :ivar offers: service and pattern
    :ivar sequences: stream -> last sequence delivered
    """

    def __init__(self) -> None:
        self.stream: bytes | None = None
        self.reads: dict[bytes, dict[bytes, int | None]] = {}
        self.offers: dict[tuple[bytes, bytes], None] = {}
        self.sequences: dict[bytes, int] = {}

    def accepted(self, command: Command, position: int | None) -> None:
        """The broker has answered ``command`` with OK.

        :param position: from the answer to READ: the subscription is for messages with higher sequences
        """
        if isinstance(command, wire.StreamWrite):
            self.stream = command.stream
        elif isinstance(command, wire.StreamRead):
            after = read(command.trailing).after
            self.reads.setdefault(command.stream, {}).setdefault(command.pattern, position if after is None else after)
        elif isinstance(command, wire.StreamCancel):
            self.reads.pop(command.stream, None)
            self.sequences.pop(command.stream, None)
        elif isinstance(command, wire.ServiceOffer):
            self.offers[command.address, command.pattern] = None

    def delivered(self, stream: bytes, sequence: int | None) -> None:
        """:param sequence: of the message; None: the stream has no sequences"""
        if sequence is not None:
            self.sequences[stream] = max(sequence, self.sequences.get(stream, 0))

    def commands(self, with_sequences: bool) -> list[Command]:
        """What to send to a broker that knows nothing of the client.

        :param with_sequences: the broker takes positions: a stream is read from the message after the last one
            delivered
        """
        commands: list[Command] = [] if self.stream is None else [wire.StreamWrite(self.stream)]
        for stream, patterns in self.reads.items():
            delivered = self.sequences.get(stream, 0)
            for pattern, after in patterns.items():
                known = with_sequences and (delivered or after is not None)
                trailing = write(Extension(after=max(delivered, after or 0))) if known else b""
                commands.append(wire.StreamRead(stream, pattern, trailing))
        return commands + [wire.ServiceOffer(*offer) for offer in self.offers]
