"""Waits of threads at one connection: for answers, for room to send, and for deliveries."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from mama_spark.contracts.errors import ClientClosed, Unavailable

from ..protocol import commands
from ..protocol.commands import Command, StatusCode
from .calls import Call, CallFailed
from .connection import ClientConnection
from .states import ClientState

_ENDED = (ClientState.START, ClientState.CLOSED, ClientState.FAILED)


class ClientInbox:
    """Up to ``window`` deliveries that the application has not taken (0 = it gives credit, or there is no limit), and
    trackers that wait for confirmations. Not thread-safe."""

    def __init__(self, window: int) -> None:
        self._window, self._taken = window, 0
        self._messages: deque[Command] = deque()
        self.trackers: WeakValueDictionary[bytes, Tracker] = WeakValueDictionary()  # weak: some are never confirmed

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, received: list[Command]) -> None:
        """Pass confirmations to their trackers, and keep deliveries."""
        for command in received:
            if isinstance(command, commands.Confirm):
                if (tracker := self.trackers.pop(command.tracker, None)) is not None:
                    tracker.confirmation = command
            else:
                self._messages.append(command)

    def take(self) -> tuple[Command, int]:
        """The oldest delivery, and how many more the broker may send: 0, or half a window, so that few commands do."""
        command = self._messages.popleft()
        self._taken += 1
        if not self._window or self._taken * 2 < self._window:
            return command, 0
        credit, self._taken = self._taken, 0
        return command, credit


class BlockingCalls:
    """Calls of any thread to a broker, each with a deadline: ``timeout`` seconds where it has none of its own."""

    def __init__(self, connection: ClientConnection, inbox: ClientInbox, timeout: float) -> None:
        self._connection, self._inbox, self.timeout = connection, inbox, timeout

    def seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def call(self, what: str, timeout: float | None, command: Command) -> Call:
        """Send a command, and wait for its answer.

        :raises CallFailed: the broker refuses
        :raises Unavailable: no answer in time
        """
        connection = self._connection
        with connection.changed:
            if connection.fatal is not None:
                raise connection.fatal
            try:
                now, machine = time.monotonic(), connection.machine
                end = now + self.seconds(timeout)
                call = machine.ping(now, end) if isinstance(command, commands.Ping) else machine.call(command, end)
            except ClientClosed as e:
                raise ClientClosed(connection.explain(what, str(e))) from e
        connection.wait(call, what)
        return call

    def send(
        self, timeout: float | None, frames: Sequence[bytes], send: Callable[[], object], stream: bool = False
    ) -> None:
        """Send a command without an answer, as soon as the client is connected and there is room for its content
        ``frames``; ``stream``: in the send window, too."""
        connection = self._connection

        def ready() -> bool:
            may_send = not stream or connection.machine.send_window.may_send
            return connection.connected and connection.capacity > 0 and may_send

        def now() -> None:
            send()
            connection.count_queued(sum(map(len, frames)) + 64)

        self.wait_until(ready, timeout, "sending", then=now)
        connection.wake()

    def wait_until(
        self, condition: Callable[[], bool], timeout: float | None, what: str, then: Callable[[], object] | None = None
    ) -> None:
        """Wait for what the broker sends; then call ``then`` before anything else arrives.

        :raises Unavailable: not in time; the text says whether the client is connected
        :raises ClientClosed: the client was closed
        """
        connection = self._connection

        def over() -> bool:
            machine = connection.machine
            received, machine.received = machine.received, []
            self._inbox.put(received)
            return condition() or connection.fatal is not None or machine.state in _ENDED

        with connection.changed:
            connection.changed.wait_for(over, self.seconds(timeout))
            if condition():
                if then is not None:
                    then()
                return
            if connection.fatal is not None:
                raise connection.fatal
            if connection.machine.state in _ENDED:
                raise ClientClosed(connection.explain(what, f"not connected ({connection.machine.state.value})"))
            state = "nothing in time" if connection.connected else "not connected"
            raise Unavailable(connection.explain(what, f"{state} ({self.seconds(timeout):g} s)"))


class Tracker:
    """Follows one mailbox or service message until its receiver confirms it."""

    def __init__(self, calls: BlockingCalls, name: str) -> None:
        self.name = name
        self._calls = calls
        self.confirmation: commands.Confirm | None = None

    @property
    def done(self) -> bool:
        return self.confirmation is not None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the receiver has confirmed the message.

        :raises CallFailed: the message did not arrive, or the receiver reports a failure; the text says why
        :raises Unavailable: no confirmation within ``timeout`` seconds
        """
        self._calls.wait_until(lambda: self.done, timeout, f"the confirmation of {self.name}")
        assert self.confirmation is not None
        if self.confirmation.code >= StatusCode.FAILED:
            raise CallFailed(f"message {self.name}", self.confirmation.code, self.confirmation.reason)
