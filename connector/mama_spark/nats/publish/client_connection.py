"""The caller's nats-py client, on the caller's event loop: publishes by its public calls, and polls the state of its
connection, because its callbacks are the caller's.

Bytes unwritten at a disconnect are discarded: nothing unknown to the publisher's window is sent after a reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from mama_spark.contracts.errors import BackgroundTaskFailed, MamaError, Unavailable

from ..connection.login import refusal
from ..connection.socket_connection import ConnectionListener, new_inbox
from ..error_codes import denied, not_subscribed
from ..protocol.acks import classify
from ..protocol.parser import Frame
from .nats_py_errors import from_client

T = TypeVar("T")
_LOOK = 0.02  #: seconds between two looks at the connection
Row = tuple[int, str, bytes, str, dict[str, str] | None]  # token, subject, payload, reply, headers


class ClientListener(ConnectionListener, Protocol):
    """Called on the loop's thread."""

    def on_unsent(self, token: int, error: MamaError) -> None: ...
    def on_closed(self, info: str) -> None: ...


class CallersLoop:
    """The event loop of the caller, for calls from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def here(self) -> bool:
        """Whether the calling thread runs it."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def soon(self, call: Callable[[], object]) -> None:
        """Run ``call`` on the loop. BackgroundTaskFailed: it is closed."""
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError as e:
            raise _ended(e) from e

    def run(self, work: Coroutine[Any, Any, T], timeout: float, what: str) -> T:
        """Run a coroutine on the loop, and wait for it.
        BackgroundTaskFailed: the loop is closed. Unavailable: it took longer than ``timeout`` seconds."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as e:
            work.close()
            raise _ended(e) from e
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise Unavailable(f"{what} took longer than {timeout:g} s") from None


def _ended(error: RuntimeError) -> BackgroundTaskFailed:
    return BackgroundTaskFailed(f"the event loop of the NATS client has ended: {error}")


class CallersClient:
    """Connection of a bridge over the caller's client."""

    def __init__(self, loop: CallersLoop, client: Client) -> None:
        self.loop, self.client = loop, client
        self.inbox = f"{new_inbox()}.".encode()
        self.listener: ClientListener | None = None
        self.next_token = 0  #: next token on the wire
        self.unwritten = 0  #: bytes accepted and not yet written to the socket
        self.closed = False
        self._up = False
        self._epoch = 0
        self._reconnects = 0
        self._error: Exception | None = None  # seen at the last look
        self._error_before: Exception | None = None  # before the connection was lost
        self._inbox_subject = self.inbox.decode() + ">"
        self._rows: deque[list[Row]] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.subscription: Subscription | None = None

    @property
    def up(self) -> bool:
        return self._up and self.client.is_connected

    @property
    def why_down(self) -> str:
        error = self.client.last_error
        if self.up or error is None or error is self._error_before:
            return ""
        return f"cannot connect to NATS again: {refusal(str(error) or type(error).__name__)}"

    async def start(self, timeout: float) -> None:
        """Subscribe to the inbox. ConfigError: the server does not allow it. Unavailable: no answer within ``timeout``
        seconds."""
        try:
            self.subscription = await self.client.subscribe(
                self._inbox_subject, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
            )
            for _ in range(2):  # the client writes a PING before a queued SUB
                await self.client.flush(max(1, int(timeout)))
        except (TimeoutError, nats.errors.Error, OSError) as e:
            raise from_client(e) from e
        self._error, self._reconnects = self.client.last_error, self.client.stats["reconnects"]
        if denied(str(self._error)) == ("subscription", self._inbox_subject.lower()):
            raise not_subscribed("subscription", self._inbox_subject)
        self._up = True
        self._begin("look", self._look_often())
        self._start_publishing()

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = self.loop.loop.create_task(work)

    async def release(self) -> None:
        """Unsubscribe from the client, which stays open."""
        self._up = False
        for task in self._tasks.values():
            task.cancel()
        if self.subscription is not None:
            with contextlib.suppress(Exception):
                await self.subscription.unsubscribe()

    # --- writing ---------------------------------------------------------------------------------------------

    def publish(self, rows: list[Row]) -> None:
        """Publish messages soon by the public calls; from any thread."""
        self.unwritten += sum(len(r[2]) for r in rows)
        self._rows.append(rows)
        self.loop.soon(self._start_publishing)

    def _written(self, size: int, epoch: int) -> None:
        if epoch == self._epoch:
            self.unwritten -= size
            if self.listener is not None:
                self.listener.on_written(size)

    def _start_publishing(self) -> None:
        if (publishing := self._tasks.get("publish")) is None or publishing.done():
            self._begin("publish", self._publish())

    async def _publish(self) -> None:
        while self._rows and self._up:
            rows, epoch = self._rows.popleft(), self._epoch
            for i, (token, subject, payload, reply, headers) in enumerate(rows):
                self._look()
                if epoch != self._epoch:
                    return  # the connection broke: the rest was not sent, and the window counts it as in doubt
                try:
                    await self.client.publish(subject, payload, reply=reply, headers=headers)
                except Exception as e:  # noqa: BLE001 - the error goes to the flight
                    if self.listener is not None:
                        self.listener.on_unsent(token, from_client(e))
                if i % 64 == 63:
                    await asyncio.sleep(0)
            self._written(sum(len(r[2]) for r in rows), epoch)

    def _discard_unwritten(self) -> None:
        self._epoch += 1
        self._rows.clear()
        self.unwritten = 0

    # --- incoming messages -----------------------------------------------------------------------------------

    async def _on_message(self, msg: Msg) -> None:
        headers = msg.headers or {}
        status = headers.get("Status", "0")
        number = int(status) if status.isascii() and status.isdigit() and len(status) <= 3 else 0
        text = headers.get("Description", "")
        frame = Frame("MSG", 0, headers=list(headers.items()), status=number, status_text=text, payload=msg.data)
        if self.listener is not None:
            self.listener.on_reply(msg.subject.encode(), classify(frame))

    # --- state of the connection ----------------------------------------------------------------------------------

    async def _look_often(self) -> None:
        while not self.closed:
            self._look()
            await asyncio.sleep(_LOOK)

    def _look(self) -> None:
        client, listener = self.client, self.listener
        before, self._error = self._error, client.last_error
        if self._error is not before and (violation := denied(str(self._error))) is not None and listener is not None:
            kind, subject = violation
            if kind == "publish" or subject == self._inbox_subject.lower():  # subscriptions of the caller are not ours
                listener.on_denied(kind, subject, False)
        reconnects, self._reconnects = self._reconnects, client.stats["reconnects"]
        if self._up and not (client.is_connected and reconnects == self._reconnects):
            self._up, self._error_before = False, before
            self._discard_unwritten()
            if listener is not None:
                listener.on_disconnected()
        if client.is_closed and not self.closed:
            self.closed = True
            if listener is not None:
                listener.on_closed(str(client.last_error or "the connection was closed"))
        elif client.is_connected and not self._up:
            self._up = True
            if listener is not None:
                listener.on_reconnected()
            self._start_publishing()
