"""Pending calls of a client: commands that the broker answers in order. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

from ..protocol.commands import Close, Command, Ping
from ..protocol.extensions import Extension


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


@dataclass(slots=True, eq=False)
class Call:
    """A command that the broker answers.

    :ivar internal: made by the client's state machine; no caller waits for it
    :ivar done: answered or expired
    :ivar error: why it failed; None if it succeeded
    :ivar extension: extension of the answer
    """

    command: Command
    deadline: float
    internal: bool = False
    done: bool = False
    error: MamaError | None = None
    extension: Extension = field(default_factory=Extension)

    def __repr__(self) -> str:
        state = "pending" if not self.done else repr(self.error) if self.error else "done"
        return f"<Call {type(self.command).__name__} {state}>"

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

    A PONG may overtake other answers, because a broker answers PING while an engine is still starting. A PONG removes
    the expired calls before its PING: a missing answer must not be matched with a later call.
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
        """Remove and return the call that an answer belongs to; None if there is none.

        :param ping: the answer is a PONG
        """
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
        """Remove all."""
        calls, self._calls = list(self._calls), deque()
        return calls

    def expire(self, now: float) -> None:
        for call in self._calls:
            if call.deadline <= now:
                call.finish(Unavailable("the broker did not answer in time"))
