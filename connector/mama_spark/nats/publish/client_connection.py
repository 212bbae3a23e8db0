"""A client of nats-py that belongs to the caller, on whose event loop it stays: messages and requests by its public
calls.

What was not written when the connection broke is discarded, so that nothing is sent after a reconnect that the
publisher's window does not know of.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

from ..connection.login import refusal
from ..connection.socket_connection import ConnectionListener, Request, new_inbox
from ..errors import denied, no_responders
from ..protocol.acks import classify_parts
from ..protocol.parser import Frame
from ..settings import DEFAULT_API_PREFIX
from .event_loop import EventLoopThread
from .nats_py_errors import from_client

Row = tuple[int, str, bytes, str, dict[str, str] | None]  # token, subject, payload, reply, headers


class ClientListener(ConnectionListener, Protocol):
    """Called on the loop's thread."""

    def on_unsent(self, token: int, error: MamaError) -> None: ...
    def on_closed(self, info: str) -> None: ...


class CallersClient:
    """The client, as a bridge uses it.

    :param api_prefix: prefix of the subjects of JetStream API requests
    """

    def __init__(self, loop: EventLoopThread, client: Client, api_prefix: str = DEFAULT_API_PREFIX) -> None:
        self.loop, self.client, self.api_prefix = loop, client, api_prefix
        self.inbox = f"{new_inbox()}.".encode()
        self.listener: ClientListener | None = None
        self.next_token = 0  #: next token on the wire
        self.unwritten = 0  #: bytes accepted and not yet written to the socket
        self.closed = False
        self.last_error: Exception | None = None  #: of an attempt to connect
        self._up = False
        self._epoch = 0
        self._rows: deque[list[Row]] = deque()
        self._publishing: asyncio.Task[None] | None = None
        self.subscription: Subscription | None = None
        self._denials: dict[str, asyncio.Future[str]] = {}

    @property
    def up(self) -> bool:
        return self._up and self.client.is_connected

    @property
    def why_down(self) -> str:
        """Why a connection that was lost is not there again; empty = that is not known."""
        error = self.last_error
        return "" if error is None else f"cannot connect to NATS again: {refusal(str(error) or type(error).__name__)}"

    async def start(self, timeout: float) -> None:
        """Subscribe to the inbox.

        :raises ConfigError: the server does not allow the subscription
        """
        subject = self.inbox.decode() + ">"
        self.subscription = await self.subscribe(subject, self._on_message, timeout)
        if self.subscription is None:
            raise ConfigError(f"no permission to subscribe to the inbox {subject!r}: no answer would arrive")
        self._up = True
        if self._rows:
            self._start_publishing()

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], timeout: float
    ) -> Subscription | None:
        """Subscribe, and wait until the server has accepted it; None: the permissions forbid it.

        :param timeout: seconds to wait for the server
        :raises Unavailable: it did not
        """
        with self.denials(subject) as refused:
            try:
                subscription = await self.client.subscribe(
                    subject, cb=callback, pending_msgs_limit=0, pending_bytes_limit=0
                )
                for _ in range(2):  # the client writes a PING before a queued SUB
                    await self.client.flush(max(1, int(timeout)))
            except (TimeoutError, nats.errors.Error, OSError) as e:
                raise from_client(e) from e
            return None if refused.done() else subscription

    # --- requests, on another thread than that of the loop -------------------------------------------------------

    def drive(self, timeout: float) -> None:
        """Let some time pass."""
        time.sleep(timeout)

    def request(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None = None
    ) -> Frame | None:
        """See :meth:`.SocketConnection.request`."""
        asked = self._request(subject, payload, timeout, headers)
        try:
            reply = self.loop.run(asked, timeout + 1, f"the request to {subject}")
        except nats.errors.NoRespondersError:
            raise no_responders(subject) from None
        return None if reply is None else Frame("MSG", 0, reply.subject.encode(), payload=reply.data)

    def request_all(self, requests: Sequence[Request], timeout: float) -> list[Frame | MamaError | None]:
        """See :meth:`.SocketConnection.request_all`."""
        found: list[Frame | MamaError | None] = []
        for subject, payload, headers in requests:
            try:
                found.append(self.request(subject, payload, timeout, headers))
            except MamaError as e:
                found.append(e)
        return found

    async def _request(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None = None
    ) -> Msg | None:
        """Send a request, or a message that is acknowledged, and return the reply; None: the permissions forbid it.

        :raises nats.errors.NoRespondersError: nobody subscribes to the subject
        :raises Unavailable: no reply within ``timeout`` seconds
        """
        request = asyncio.ensure_future(self.client.request(subject, payload, timeout=timeout, headers=headers))
        try:
            with self.denials(subject) as refused:
                either: set[asyncio.Future[Any]] = {request, refused}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                return None if refused.done() else request.result()
        except nats.errors.NoRespondersError:
            raise
        except (TimeoutError, nats.errors.Error, OSError) as e:
            raise Unavailable(f"no answer to {subject}: {e or type(e).__name__}") from e
        finally:
            request.cancel()

    @contextlib.contextmanager
    def denials(self, subject: str) -> Iterator[asyncio.Future[str]]:
        """A future that is done when the server reports ``subject`` as forbidden; shared by all who wait for it."""
        key = subject.lower()
        refused = self._denials.get(key) or self.loop.loop.create_future()
        self._denials[key] = refused
        try:
            yield refused
        finally:
            if self._denials.get(key) is refused:
                self._denials.pop(key)

    async def release(self) -> None:
        """Unsubscribe from the client, which stays open."""
        self._up = False
        if self._publishing is not None:
            self._publishing.cancel()
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
        if self._publishing is None or self._publishing.done():
            self._publishing = self.loop.loop.create_task(self._publish())

    async def _publish(self) -> None:
        while self._rows and self._up:
            rows, epoch = self._rows.popleft(), self._epoch
            for i, (token, subject, payload, reply, headers) in enumerate(rows):
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
        """Discard everything that is not written."""
        self._epoch += 1
        self._rows.clear()
        self.unwritten = 0

    # --- incoming messages -----------------------------------------------------------------------------------

    async def _on_message(self, msg: Msg) -> None:
        headers = msg.headers or {}
        status = headers.get("Status", "0")
        reply = classify_parts(
            int(status) if status.isascii() and status.isdigit() and len(status) <= 3 else 0,
            headers.get("Description", ""),
            msg.data,
            headers.get("Nats-Subject", ""),
        )
        if self.listener is not None:
            self.listener.on_reply(msg.subject.encode(), reply)

    def _denied(self, kind: str, subject: str) -> None:
        waiting = self._denials.get(subject.lower())
        if waiting is not None and not waiting.done():
            waiting.set_result(subject)
        elif self.listener is not None:
            self.listener.on_denied(kind, subject, False)

    # --- callbacks of nats-py ----------------------------------------------------------------------------------

    async def on_error(self, error: Exception) -> None:
        violation = denied(str(error))
        if violation is not None:
            self._denied(*violation)
        elif not self.up:
            self.last_error = error

    async def on_disconnected(self) -> None:
        was_up, self._up, self.last_error = self._up, False, None
        self._discard_unwritten()
        if was_up and self.listener is not None:
            self.listener.on_disconnected()

    async def on_reconnected(self) -> None:
        self._up = True
        if self.listener is not None:
            self.listener.on_reconnected()

    async def on_closed(self) -> None:
        already, self.closed, self._up = self.closed, True, False
        if not already and self.listener is not None:
            self.listener.on_closed(str(self.client.last_error or "the connection was closed"))


# --- contexts of the caller, which have no public calls for these ---------------------------------------------------


def client_of(context: Any) -> Any:
    """The client of a JetStream context; None if it cannot be found."""
    return getattr(context, "_nc", None)


def api_prefix_of(context: Any) -> str:
    """Prefix of the subjects of a JetStream context's requests, with its trailing dot."""
    prefix = getattr(context, "_prefix", None)
    return f"{prefix}." if isinstance(prefix, str) else DEFAULT_API_PREFIX


def loop_of(context: Any) -> asyncio.AbstractEventLoop:
    """The loop that a context's client reads on, or else the running one.

    :raises ConfigError: neither can be found
    """
    reading = getattr(client_of(context), "_reading_task", None)
    if isinstance(reading, asyncio.Task):
        return reading.get_loop()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError("the event loop of this JetStream context cannot be found: give it as loop=") from None


Callback = Callable[..., Coroutine[Any, Any, None]]


def add_callbacks(
    client: Any, error: Callback, disconnected: Callback, reconnected: Callback, closed: Callback
) -> None:
    """Call these in addition to the callbacks that the client's owner has set."""

    def both(theirs: Callback | None, ours: Callback) -> Callback:
        async def call(*args: Any) -> None:
            await ours(*args)
            if theirs is not None:
                await theirs(*args)

        return call

    client._disconnected_cb = both(client._disconnected_cb, disconnected)
    client._reconnected_cb = both(client._reconnected_cb, reconnected)
    client._closed_cb = both(client._closed_cb, closed)
    client._error_cb = both(client._error_cb, error)
