"""Calls that a broker has not answered, and what it knows of the client. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

from ..protocol import commands as wire
from ..protocol.commands import Close, Command, Ping, StatusCode
from ..protocol.extensions import Extension, read, write
from ..protocol.log_query import LogQuery, LogQueryAnswer, parse_answer


class CallFailed(MamaError):
    """The broker refused a call; the text is its reason.

    :ivar code: see :class:`~mama_spark.malamute.protocol.commands.StatusCode`
    """

    def __init__(self, what: str, code: int, reason: bytes) -> None:
        text = reason.decode("utf-8", "replace")
        super().__init__(f"{what} was refused with {code}" + (f": {text}" if text else ""))
        self.code = code


class NoStream(ConfigError):
    """SEND before a successful WRITE: no stream is chosen."""


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """A command that the broker answers. ``internal``: made by the client's state machine, no caller waits for it;
    ``done``: answered or expired; ``error``: why it failed, None if it succeeded."""

    command: Command
    deadline: float
    internal: bool = False
    done: bool = False
    error: MamaError | None = None
    extension: Extension = field(default_factory=Extension)

    @property
    def is_ping(self) -> bool:
        return isinstance(self.command, Ping)

    def finish(self, error: MamaError | None, extension: Extension | None = None) -> None:
        """Set the outcome, unless it is set already."""
        if not self.done:
            self.done, self.error = True, error
            self.extension = extension or self.extension


class PendingCalls:
    """Unanswered calls, the oldest first.

    A PONG may overtake other answers: a broker answers PING while an engine is still starting. A PONG removes the
    expired calls before its PING: a missing answer must not be matched with a later call.
    """

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def add(self, call: Call) -> None:
        self._calls.append(call)

    @property
    def oldest(self) -> Call | None:
        return self._calls[0] if self._calls else None

    @property
    def has_ping(self) -> bool:
        return any(call.is_ping for call in self._calls)

    @property
    def has_close(self) -> bool:
        return any(isinstance(call.command, Close) for call in self._calls)

    @property
    def all_done(self) -> bool:
        return all(call.done for call in self._calls)

    def answered(self, ping: bool) -> Call | None:
        """Remove and return the call that an answer (``ping``: a PONG) belongs to; None if there is none."""
        index = next((i for i, call in enumerate(self._calls) if call.is_ping is ping), None)
        if index is None:
            return None
        call = self._calls[index]
        if index == 0:
            self._calls.popleft()
        else:
            kept = [one for i, one in enumerate(self._calls) if i > index or (i < index and not one.done)]
            self._calls = deque(kept)
        return call

    def take(self) -> list[Call]:
        calls, self._calls = list(self._calls), deque()
        return calls

    def expire(self, now: float) -> None:
        for call in self._calls:
            if call.deadline <= now:
                call.finish(Unavailable("the broker did not answer in time"))


def passes(code: int) -> bool:
    """Whether a call refused with this code may succeed later: ERROR 502 says that an engine did not start or has
    failed. After any other refusal, the user must change something."""
    return code == StatusCode.INTERNAL_ERROR


def refused(code: int, text: str) -> Unavailable | ConfigError:
    return Unavailable(text) if passes(code) else ConfigError(text)


_DELIVER = wire.SIGNATURE + bytes([wire.StreamDeliver.id])


@dataclass(slots=True, eq=False, repr=False)
class PendingQuery:
    """A query that was sent; ``done``: answered or expired; ``error``: why there is no answer; ``records``: frames of
    the messages received for it."""

    query: LogQuery
    deadline: float
    done: bool = False
    error: MamaError | None = None
    answer: LogQueryAnswer | None = None
    records: list[Sequence[bytes]] = field(default_factory=list)


class LogQueryClient:
    """Queries, not repeated on a new connection. What a fetch returns is kept as frames, to be decoded in columns."""

    def __init__(self) -> None:
        self.pending: dict[int, PendingQuery] = {}  #: by number
        self._records: list[Sequence[bytes]] = []
        self._last_number = 0

    def ask(self, query: LogQuery, deadline: float) -> tuple[PendingQuery, list[bytes]]:
        """Register a query; returns it and the frames to send.

        :raises BadFrame: the query does not fit in a frame
        """
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        pending = PendingQuery(replace(query, number=self._last_number), deadline)
        frames = wire.encode(wire.Ping(write(Extension(question=pending.query.pack()))))
        self.pending[self._last_number] = pending
        return pending, frames

    def keep(self, frames: Sequence[bytes]) -> bool:
        """Keep a message of a fetch; False if the frames are no message. Call it while a query is pending."""
        if frames and frames[0].startswith(_DELIVER):
            self._records.append(frames)
            return True
        return False

    def answered(self, packed: bytes) -> None:
        """Finish a query: the messages before its answer belong to it, even if it has expired."""
        records, self._records = self._records, []
        answer = parse_answer(packed)
        pending = None if answer is None else self.pending.pop(answer.number, None)
        if pending is not None:
            pending.done, pending.answer, pending.records = True, answer, records

    def expire(self, now: float) -> None:
        for number, pending in list(self.pending.items()):
            if pending.deadline <= now:
                del self.pending[number]
                pending.done, pending.error = True, Unavailable("the broker did not answer in time")

    def next_deadline(self) -> float:
        return min((pending.deadline for pending in self.pending.values()), default=float("inf"))

    def give_up(self, error: MamaError) -> None:
        queries, self.pending = self.pending, {}
        self._records = []
        for pending in queries.values():
            pending.done, pending.error = True, error


class Registrations:
    """The commands of one client that stay in effect. The broker forgets them when it is restarted or the client
    expires; the client then sends them again.

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
        """The broker has answered ``command`` with OK, READ with ``position``: the subscription is for messages with
        higher sequences."""
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
        if sequence is not None:
            self.sequences[stream] = max(sequence, self.sequences.get(stream, 0))

    def commands(self, with_sequences: bool) -> list[Command]:
        """Commands that tell a broker everything that the client has asked for; ``with_sequences``: it takes positions,
        so a stream is read from the message after the last one delivered."""
        commands: list[Command] = [] if self.stream is None else [wire.StreamWrite(self.stream)]
        for stream, patterns in self.reads.items():
            delivered = self.sequences.get(stream, 0)
            for pattern, after in patterns.items():
                known = with_sequences and (delivered or after is not None)
                trailing = write(Extension(after=max(delivered, after or 0))) if known else b""
                commands.append(wire.StreamRead(stream, pattern, trailing))
        return commands + [wire.ServiceOffer(*offer) for offer in self.offers]
