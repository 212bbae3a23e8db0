"""Frames for clients: replies in the order of their commands, and frames for blocked sockets. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.credit import send_cost

from .client_session import ClientSession, Frames, PendingReply
from .states import SessionEvent

#: Replies of one client that may wait for an engine.
MAX_PENDING_REPLIES = 100_000
OK = commands.encode(commands.Ok())

DropClient = Callable[[ClientSession, SessionEvent], None]


class ClientOutput:
    """The frames to send, in order.

    :param limit: octets of replies that may wait for a client whose socket is blocked
    :param drop: called for a client that exceeds a limit
    """

    def __init__(self, limit: int, drop: DropClient) -> None:
        self._limit = limit
        self._drop = drop
        self._outgoing: list[tuple[ClientSession | bytes, Frames]] = []

    def __len__(self) -> int:
        return len(self._outgoing)

    def take(self) -> list[tuple[ClientSession | bytes, Frames]]:
        """Take the frames to send, each with its client, or the routing id of a peer without session."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def send(self, receiver: ClientSession | bytes, frames: Frames) -> None:
        self._outgoing.append((receiver, frames))

    def send_or_keep(self, client: ClientSession, messages: list[Frames]) -> None:
        """Send messages that must stay contiguous, or queue them without a limit; the caller bounds them."""
        if client.blocked:
            for frames in messages:
                client.replies.put(frames, frames_size(frames))
        else:
            self._outgoing += [(client, frames) for frames in messages]

    def emit(self, client: ClientSession, frames: Frames) -> None:
        """Send a reply at once, ahead of those that wait for engines."""
        if client.blocked:
            client.replies.put(frames, frames_size(frames))
            if client.replies.size > self._limit:  # it keeps sending commands and does not read the replies
                self._drop(client, SessionEvent.QUEUE_FULL)
        else:
            self._outgoing.append((client, frames))

    def reply(self, client: ClientSession, frames: Frames) -> None:
        """Send a reply after those to earlier commands."""
        if client.pending_replies:
            client.pending_replies.append(PendingReply(frames))
            if len(client.pending_replies) > MAX_PENDING_REPLIES:  # it sends commands while an engine does not answer
                self._drop(client, SessionEvent.QUEUE_FULL)
        else:
            self.emit(client, frames)

    def fail(self, client: ClientSession, reason: bytes) -> None:
        self.reply(client, error_frames(StatusCode.FAILED, reason))

    def advance(self, client: ClientSession) -> None:
        """Send the complete replies at the front."""
        while client.pending_replies and client.pending_replies[0].frames is not None:
            self.emit(client, client.pending_replies.popleft().frames or [])

    def flush(self, client: ClientSession) -> None:
        """At the end of a session: send the complete replies and drop the others."""
        for reply in client.pending_replies:
            if reply.frames is not None and not reply.silent:
                self._outgoing.append((client.identity, reply.frames))
        client.pending_replies.clear()

    def block(self, client: ClientSession, frames: Frames) -> None:
        """Mark the client as blocked: its socket did not accept these frames, which are queued with all later ones."""
        client.blocked = True
        client.replies.put(frames, frames_size(frames))

    def put_back(self, client: ClientSession, frames: Frames) -> None:
        """Put back the frames that the socket did not accept at a retry."""
        client.replies.put_back(frames, frames_size(frames))


def frames_size(frames: Frames) -> int:
    """Octets of memory that frames take in a queue, overhead included."""
    return send_cost(sum(map(len, frames)), 1)


def error_frames(code: StatusCode, reason: bytes) -> Frames:
    return commands.encode(commands.Error(code, reason.replace(b"\0", b"?")[:255]))
