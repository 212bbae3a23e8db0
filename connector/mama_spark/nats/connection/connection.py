"""One connection of nats-py, on a :class:`~.event_loop.EventLoopThread`: for readers, and for publishing over a client
of the caller.

What was not written when the connection broke is discarded, so that nothing is sent after a reconnect that the
publisher's window does not know of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import (
    DEFAULT_SUB_PENDING_BYTES_LIMIT,
    DEFAULT_SUB_PENDING_MSGS_LIMIT,
    Subscription,
)
from nats.nuid import NUID

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

from ..errors import denied
from ..protocol.acks import AckColumns, Reply, classify_parts
from ..settings import DEFAULT_API_PREFIX, NatsSettings
from .checks import Checks
from .connect_options import connect_options
from .event_loop import EventLoopThread
from .inbound_parser import Deliveries, InboundParser
from .nats_py_compat import (
    cancel_reconnects,
    close_abandoned,
    close_client,
    fast_path_usable,
    new_client,
    replace_parser,
    subscription_id,
    transport_of,
)
from .nats_py_errors import from_client
from .raw_read import move_in_bulk

MAX_UNWRITTEN = 8 * 1024 * 1024
Row = tuple[int, str, bytes, str, dict[str, str] | None]  # token, subject, payload, reply, headers


class ConnectionListener(Protocol):
    """Receives what a connection reads; called on the loop's thread, or by who drives it."""

    def on_acks(self, columns: list[AckColumns]) -> None: ...
    def on_reply(self, subject: bytes, reply: Reply) -> None: ...
    def on_denied(self, kind: str, subject: str, exact: bool) -> None: ...
    def on_unsent(self, token: int, error: BaseException) -> None: ...
    def on_disconnected(self, why: str = "") -> None: ...
    def on_reconnected(self) -> None: ...
    def on_closed(self, info: str) -> None: ...
    def on_written(self, size: int) -> None: ...


class Connection:
    """A connection of nats-py, which reconnects when it breaks.

    :param fast: use the fast path; None = if the installed nats-py allows it
    :param api_prefix: prefix of the subjects of JetStream API requests
    """

    def __init__(
        self, loop: EventLoopThread, client: Client, fast: bool | None, api_prefix: str = DEFAULT_API_PREFIX
    ) -> None:
        self.loop, self.client, self.api_prefix = loop, client, api_prefix
        self.inbox = b"_INBOX.%s." % bytes(NUID().next())
        self.listener: ConnectionListener | None = None
        self.next_token = 0  #: next token on the wire; each bridge continues after the one before it
        self.unwritten = 0  #: bytes accepted and not yet written to the socket
        self.checks = Checks()
        self.cached, self.cache = self.checks.cached, self.checks.cache
        self.owned = True  #: False: the client is the caller's
        self.closed = False
        self.last_error: Exception | None = None  #: of an attempt to connect
        self._fast_wanted = fast
        self.fast = False  #: the fast path is used, not public calls
        self._parser: InboundParser | None = None
        self._up = False
        self._epoch = 0
        self._rows: deque[list[Row]] = deque()
        self._publishing: asyncio.Task[None] | None = None
        self.subscription: Subscription | None = None
        self._denials: dict[str, asyncio.Future[str]] = {}
        #: Handlers tried first for a permission error (kind, subject); unhandled ones go to the listener.
        self.denial_handlers: list[Callable[[str, str], bool]] = []

    def __repr__(self) -> str:
        state = "closed" if self.closed else "up" if self.up else "down"
        return f"<Connection {state}, {'fast' if self.fast else 'public'}, {self.unwritten} bytes unwritten>"

    @property
    def up(self) -> bool:
        return self._up and self.client.is_connected

    @property
    def why_down(self) -> str:
        """Why a connection that was lost is not there again; empty = that is not known."""
        return "" if self.last_error is None else f"cannot connect to NATS again: {from_client(self.last_error)}"

    # --- opening ---------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, loop: EventLoopThread, settings: NatsSettings) -> Connection:
        """Connect and subscribe to the inbox.

        :raises ConfigError: credentials, TLS, or the inbox is denied
        :raises Unavailable: no server answers
        """
        options = connect_options(settings)
        connection = cls(loop, new_client(tls="tls" in options), settings.fast, settings.api_prefix)
        fatal: asyncio.Future[MamaError] = loop.loop.create_future()

        async def on_error(error: Exception) -> None:
            close_abandoned(connection.client)
            await connection.on_error(error)
            translated = from_client(error)
            if isinstance(translated, ConfigError) and not fatal.done():
                fatal.set_result(translated)

        connecting = asyncio.ensure_future(
            connection.client.connect(
                error_cb=on_error,
                disconnected_cb=connection.on_disconnected,
                reconnected_cb=connection.on_reconnected,
                closed_cb=connection.on_closed,
                **options,
            )
        )
        first: set[asyncio.Future[Any]] = {connecting, fatal}
        await asyncio.wait(first, timeout=settings.connect_timeout, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done() or connecting.exception() is not None or not connection.client.is_connected:
            await connection._abort_connect(connecting)
            raise connection._connect_error(fatal, connecting, settings)
        try:
            await connection.start(settings.connect_timeout)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _abort_connect(self, connecting: asyncio.Future[Any]) -> None:
        while not connecting.done():  # the client may ignore a cancellation, see cancel_reconnects
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=0.1)
        await self.close()

    def _connect_error(
        self, fatal: asyncio.Future[MamaError], connecting: asyncio.Future[Any], settings: NatsSettings
    ) -> MamaError:
        servers = ", ".join(settings.shown_servers)
        if fatal.done():
            error = fatal.result()
            return type(error)(f"cannot connect to {servers}: {error}")
        if not connecting.cancelled() and connecting.done() and (cause := connecting.exception()) is not None:
            error = from_client(cause)
            return type(error)(f"cannot connect to {servers}: {error}")
        last = f" ({self.last_error or type(self.last_error).__name__})" if self.last_error is not None else ""
        advice = "start one there, or correct option url"
        if isinstance(self.last_error, nats.errors.Error) and "INFO" not in str(self.last_error):
            advice = "its log may say more"
        elif transport_of(self.client):  # it took the connection
            first = "greets before TLS: leave out" if settings.tls_handshake_first else "begins with TLS: set"
            advice = (
                "what listens there does not greet as a NATS server does: it hangs, has no room for more connections, "
                f"is no NATS server, or {first} option tlsHandshakeFirst"
            )
        return Unavailable(
            f"no NATS server answers within {settings.connect_timeout:g} s at {servers}{last}; {advice} "
            "(the limit is option connectTimeout; waitTimeout begins when messages are sent)"
        )

    async def start(self, timeout: float) -> None:
        """Choose the fast path or public calls, and subscribe to the inbox.

        :raises ConfigError: the server does not allow the subscription
        """
        self.fast = self._fast_wanted is not False and fast_path_usable(self.client)
        if self.fast:
            self._parser = replace_parser(
                self.client,
                lambda stock: InboundParser(stock, self._on_exact_denied),
            )
            move_in_bulk(self.client, self._parser.received)
        subject = self.inbox.decode() + ">"
        self.subscription = await self.subscribe(subject, self._on_message, timeout, unlimited=True)
        if self.subscription is None:
            raise ConfigError(f"no permission to subscribe to the inbox {subject!r}: no answer would arrive")
        self._up = True
        if self._rows:
            self._start_publishing()

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], timeout: float, *, unlimited: bool = False
    ) -> Subscription | None:
        """Subscribe, and wait until the server has accepted it; None: the permissions forbid it.

        :param timeout: seconds to wait for the server
        :param unlimited: any number of messages may wait for ``callback``
        :raises Unavailable: it did not
        """
        limits = (0, 0) if unlimited else (DEFAULT_SUB_PENDING_MSGS_LIMIT, DEFAULT_SUB_PENDING_BYTES_LIMIT)
        with self.denials(subject) as refused:
            try:
                subscription = await self.client.subscribe(
                    subject, cb=callback, pending_msgs_limit=limits[0], pending_bytes_limit=limits[1]
                )
                for _ in range(2):  # the client writes a PING before a queued SUB
                    await self.client.flush(max(1, int(timeout)))
            except (TimeoutError, nats.errors.Error, OSError) as e:
                raise from_client(e) from e
            return None if refused.done() else subscription

    async def request(
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

    def deliver_raw(self, subscription: Subscription, receiver: Callable[[int], Deliveries]) -> bytes | None:
        """Let ``receiver``'s parser instead of nats-py parse the frames of a subscription, until :meth:`stop_raw`.

        :param receiver: makes the parser, given the subscription id
        :returns: argument of :meth:`stop_raw`; None: frames come by the callback of the subscription, without the fast
            path
        """
        number = subscription_id(subscription)
        if self._parser is None or number is None:
            return None
        key = b"%d" % number
        self._parser.deliveries[key] = receiver(number)
        return key

    def stop_raw(self, key: bytes) -> None:
        """See :meth:`deliver_raw`."""
        if self._parser is not None:
            self._parser.deliveries.pop(key, None)

    async def close(self) -> None:
        """Close the connection and do not reconnect. Never raises."""
        self.closed, self._up = True, False
        self._discard_unwritten()
        if self._publishing is not None:
            self._publishing.cancel()
        if self.owned:
            await close_client(self.client)

    async def release(self) -> None:
        """Unsubscribe from the client of a caller, which stays open."""
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
                        self.listener.on_unsent(token, e)
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

    def _on_exact_denied(self, kind: str, subject: str) -> None:
        self._denied(kind, subject, exact=True)

    def _denied(self, kind: str, subject: str, exact: bool) -> None:
        waiting = self._denials.get(subject.lower())
        if waiting is not None and not waiting.done():
            waiting.set_result(subject)
        elif not any(handled(kind, subject) for handled in self.denial_handlers) and self.listener is not None:
            self.listener.on_denied(kind, subject, exact)

    # --- callbacks of nats-py ----------------------------------------------------------------------------------

    async def on_error(self, error: Exception) -> None:
        violation = denied(str(error))
        if violation is not None:
            self._denied(*violation, exact=False)
        elif not self.up:
            self.last_error = error

    async def on_disconnected(self) -> None:
        was_up, self._up, self.last_error = self._up, False, None
        self._discard_unwritten()
        if was_up and self.listener is not None:
            self.listener.on_disconnected()

    async def on_reconnected(self) -> None:
        self.checks.clear()
        cancel_reconnects(self.client)
        if self._parser is not None:
            move_in_bulk(self.client, self._parser.received)
        self._up = True
        if self.listener is not None:
            self.listener.on_reconnected()

    async def on_closed(self) -> None:
        already, self.closed, self._up = self.closed, True, False
        if not already and self.listener is not None:
            self.listener.on_closed(str(self.client.last_error or "the connection was closed"))
