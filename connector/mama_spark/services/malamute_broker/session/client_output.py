"""Frames for clients: replies in the order of their commands, and frames that a blocked socket did not take. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode

from .client_session import ClientSession, Frames, PendingReply
from .engine_backlog import OVERHEAD
from .states import SessionEvent

#: Replies of one client that may wait for an engine.
MAX_PENDING_REPLIES = 100_000
OK = commands.encode(commands.Ok())

DropClient = Callable[[ClientSession, SessionEvent], None]


class ClientOutput:
    """Everything that is to be sent, in order.

    :param limit: octets of replies that may wait for a client whose socket takes no more
    :param drop: called for a client that exceeds a limit
    """

    def __init__(self, limit: int, drop: DropClient) -> None:
        self._limit = limit
        self._drop = drop
        self._out: list[tuple[ClientSession | bytes, Frames]] = []

    def __len__(self) -> int:
        return len(self._out)

    def take(self) -> list[tuple[ClientSession | bytes, Frames]]:
        """Client, or routing id of somebody who is none, and frames."""
        out, self._out = self._out, []
        return out

    def send(self, receiver: ClientSession | bytes, frames: Frames) -> None:
        self._out.append((receiver, frames))

    def send_or_keep(self, client: ClientSession, messages: list[Frames]) -> None:
        """Messages that must stay together, whatever else waits; the caller bounds them."""
        if client.blocked:
            for frames in messages:
                client.replies.put(frames, frames_size(frames))
        else:
            self._out += [(client, frames) for frames in messages]

    def emit(self, client: ClientSession, frames: Frames) -> None:
        """Send a reply at once, ahead of those that wait for engines."""
        if client.blocked:
            client.replies.put(frames, frames_size(frames))
            if client.replies.size > self._limit:  # it sends commands without end and does not read the replies
                self._drop(client, SessionEvent.QUEUE_FULL)
        else:
            self._out.append((client, frames))

    def reply(self, client: ClientSession, frames: Frames) -> None:
        """Send a reply behind those to earlier commands."""
        if client.pending_replies:
            client.pending_replies.append(PendingReply(frames))
            if len(client.pending_replies) > MAX_PENDING_REPLIES:  # commands without end, and an engine stands still
                self._drop(client, SessionEvent.QUEUE_FULL)
        else:
            self.emit(client, frames)

    def fail(self, client: ClientSession, reason: bytes) -> None:
        self.reply(client, error_frames(StatusCode.FAILED, reason))

    def advance(self, client: ClientSession) -> None:
        """Send the replies in front that are complete by now."""
        while client.pending_replies and client.pending_replies[0].frames is not None:
            self.emit(client, client.pending_replies.popleft().frames or [])

    def flush(self, client: ClientSession) -> None:
        """The client is gone: send what is complete, forget what engines have not answered."""
        for reply in client.pending_replies:
            if reply.frames is not None and not reply.silent:
                self._out.append((client.identity, reply.frames))
        client.pending_replies.clear()

    def block(self, client: ClientSession, frames: Frames) -> None:
        """The socket of the client did not take these; from now on what is for it waits."""
        client.blocked = True
        client.replies.put(frames, frames_size(frames))

    def put_back(self, client: ClientSession, frames: Frames) -> None:
        """The socket did not take what waited longest."""
        client.replies.put_back(frames, frames_size(frames))


def frames_size(frames: Frames) -> int:
    """Octets that frames take in a queue; a small message takes several times its own."""
    return sum(map(len, frames)) + OVERHEAD


def error_frames(code: StatusCode, reason: bytes) -> Frames:
    return commands.encode(commands.Error(code, reason.replace(b"\0", b"?")[:255]))
