"""Queues commands for engines, and matches each answer with its command. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ...engines.commands import AnsweredCommand, CancelSubscriptions, EngineCommand
from ..client_session import ClientSession, PendingReply


class AwaitedAnswer(NamedTuple):
    """A command that an engine answers.

    :ivar pattern: of a new subscription
    :ivar cancels: the command is CANCEL
    """

    client: ClientSession
    reply: PendingReply
    pattern: bytes | None = None
    cancels: bool = False


class EngineCommandQueue:
    """Queues commands by stream until :meth:`take`; answers arrive in the order of the commands."""

    def __init__(self) -> None:
        self._commands: dict[bytes, list[EngineCommand]] = {}
        self._awaited: dict[bytes, deque[AwaitedAnswer]] = {}

    def __len__(self) -> int:
        """Streams with commands."""
        return len(self._commands)

    def put(self, stream: bytes, command: EngineCommand) -> None:
        queued = self._commands.get(stream)
        if queued is None:
            self._commands[stream] = [command]
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
        """:param reply: completed when the engine answers"""
        cancels = isinstance(command, CancelSubscriptions)
        self._awaited.setdefault(stream, deque()).append(AwaitedAnswer(client, reply, pattern, cancels))
        self.put(stream, command)

    def put_silent(self, streams: Iterable[bytes], command: AnsweredCommand, client: ClientSession) -> None:
        """Queue a command whose answer is not sent to the client."""
        for stream in streams:
            self.put_awaited(stream, command, client, PendingReply(silent=True))

    def expect_first(self, stream: bytes, awaited: AwaitedAnswer) -> None:
        """Expect the answer of a command that was sent ahead of all queued ones."""
        self._awaited.setdefault(stream, deque()).appendleft(awaited)

    def take(self) -> dict[bytes, list[EngineCommand]]:
        taken, self._commands = self._commands, {}
        return taken

    def answered(self, stream: bytes) -> AwaitedAnswer:
        """Remove and return the oldest unanswered command of the engine."""
        return self._awaited[stream].popleft()

    def awaited(self, stream: bytes) -> int:
        """Number of commands that the engine has not answered."""
        return len(self._awaited.get(stream, ()))

    def is_idle(self, stream: bytes) -> bool:
        """Whether nothing is queued for the engine, and no answer awaited."""
        return stream not in self._commands and not self._awaited.get(stream)

    def discard(self, stream: bytes) -> Iterable[AwaitedAnswer]:
        """Remove and return the unanswered commands of an engine that has failed or ended."""
        self._commands.pop(stream, None)
        return self._awaited.pop(stream, ())
