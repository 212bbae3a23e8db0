"""The streams of a broker for the sessions of its clients: which are open, the commands for their engines, the answers
owed, and which streams no client has used for a while. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer

from ..engines.commands import AnsweredCommand, CancelSubscriptions, EngineCommand
from .clients import ClientSession, Connections, PendingReply, error_frames

#: Seconds after which the start of an engine counts as slow: clients ping every second and time out after four.
SLOW_START = 1.0
#: Fraction of the time-out of idle streams between looks at all streams.
LOOKS = 4
#: Most unanswered commands at one engine; clients that connect and leave add to them while it is stalled.
MAX_AWAITED = 100_000


class StreamCatalog(Protocol):
    """The caller's knowledge of streams, open or not."""

    def has_flow_control(self, stream: bytes) -> bool:
        """Whether the engine of the stream delivers only against credit."""
        ...

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        """All readable stored streams, sorted."""
        ...

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        """Why the stream cannot be read; None = it can, and is opened if necessary."""
        ...


class AwaitedAnswer(NamedTuple):
    """A command that an engine answers; ``pattern``: of a new subscription; ``cancels``: it is CANCEL."""

    client: ClientSession
    reply: PendingReply
    pattern: bytes | None = None
    cancels: bool = False


@dataclass(slots=True)
class Stream:
    """State of one stream in the broker.

    :ivar flow_control: the engine delivers only against credit
    :ivar awaited: commands that the engine has not answered, in order
    :ivar queries: about what is stored, that wait for the engine; ``asked``: that it has not answered, in order
    :ivar early_bytes: sent before the engine has started
    :ivar unused_since: time at which it was first seen without clients
    """

    flow_control: bool
    stored: bool = False
    awaited: deque[AwaitedAnswer] = field(default_factory=deque)
    queries: deque[tuple[ClientSession, LogQuery]] = field(default_factory=deque)
    asked: deque[tuple[ClientSession, LogQuery]] = field(default_factory=deque)
    early_bytes: int = 0
    unused_since: float | None = None


class Streams(dict[bytes, Stream]):
    """The streams by name. ``opening``: those whose engine has not started -> time of the first command; ``full``:
    those whose backlog is full, set by the caller; ``commands``: for the engines, in order, by stream."""

    def __init__(self, clients: Connections, catalog: StreamCatalog) -> None:
        super().__init__()
        self.opening: dict[bytes, float] = {}
        self.full: set[bytes] = set()
        self.commands: dict[bytes, list[EngineCommand]] = {}
        self._clients = clients
        self._settings = clients.settings
        self._catalog = catalog
        self._next_look = 0.0

    def open(self, client: ClientSession, stream: bytes) -> bool:
        """Open the stream for WRITE or READ, if necessary; False if it cannot be used, which the client was told."""
        read, written, most = client.subscriptions, client.written_streams, self._settings.client_streams
        if stream in self and len(self[stream].awaited) >= MAX_AWAITED:
            self._clients.reply(client, error_frames(StatusCode.INTERNAL_ERROR, b"the stream does not keep up"))
        elif not self.may_add(stream):
            self._clients.fail(client, b"too many streams")
        elif len(read) + len(written) >= most and stream not in read and stream not in written:
            self._clients.fail(client, b"too many streams of one client")
        else:
            self.add(stream)
            return True
        return False

    def may_add(self, stream: bytes) -> bool:
        return stream in self or len(self) < self._settings.streams

    def add(self, stream: bytes) -> None:
        """The caller opens the engine at the first command. Idempotent."""
        if stream not in self:
            self[stream] = Stream(self._catalog.has_flow_control(stream))
            self.opening[stream] = self._clients.now

    def remove(self, stream: bytes) -> Stream | None:
        """Remove a stream whose engine has failed or ended; returns it, with what is not answered."""
        self.opening.pop(stream, None)
        self.full.discard(stream)
        self.commands.pop(stream, None)
        return self.pop(stream, None)

    def starts_slowly(self) -> bool:
        return any(self._clients.now - since > SLOW_START for since in self.opening.values())

    def put(self, stream: bytes, command: EngineCommand) -> None:
        queued = self.commands.get(stream)
        if queued is None:
            self.commands[stream] = [command]
        else:
            queued.append(command)

    def put_awaited(
        self,
        stream: bytes,
        command: AnsweredCommand,
        client: ClientSession,
        reply: PendingReply,
        pattern: bytes | None = None,
    ) -> None:
        """Queue a command whose answer completes a reply; ``pattern``: of a new subscription."""
        awaited = AwaitedAnswer(client, reply, pattern, isinstance(command, CancelSubscriptions))
        self[stream].awaited.append(awaited)
        self.put(stream, command)

    def put_silent(self, streams: Iterable[bytes], command: AnsweredCommand, client: ClientSession) -> None:
        """Queue a command whose answer is not sent to the client."""
        for stream in streams:
            self.put_awaited(stream, command, client, PendingReply(silent=True))

    def reply_later(
        self,
        client: ClientSession,
        stream: bytes,
        command: AnsweredCommand,
        reply: PendingReply,
        pattern: bytes | None = None,
    ) -> None:
        """Queue a command whose answer is the next reply to the client."""
        client.pending_replies.append(reply)
        self.put_awaited(stream, command, client, reply, pattern)

    def answered(self, stream: bytes) -> AwaitedAnswer:
        """Remove and return the oldest unanswered command; the engine has started."""
        if self.opening:
            self.opening.pop(stream, None)
        return self[stream].awaited.popleft()

    def take_commands(self) -> dict[bytes, list[EngineCommand]]:
        taken, self.commands = self.commands, {}
        return taken

    def idle(self, now: float) -> list[bytes]:
        """Streams without clients for the time-out that owe no answer, never the broker's own; looks only now and
        then."""
        timeout, own = self._settings.stream_idle, self._settings.events
        if not timeout or now < self._next_look or not self:
            return []
        self._next_look = now + timeout / LOOKS
        used: set[bytes | None] = {own, *self.opening}
        for client in self._clients:
            used.add(client.write_stream)
            used.update(client.subscriptions, client.unsynced_sends, (query.stream for query in client.parked_queries))
        found = []
        for name, stream in self.items():
            if name in used:
                stream.unused_since = None
                continue
            if stream.unused_since is None:
                stream.unused_since = now
            owes = name in self.commands or stream.awaited or stream.queries or stream.asked
            if now - stream.unused_since >= timeout and not owes:
                found.append(name)
        return found
