"""One nats-py connection with one inbox for acknowledgements; lives on a :class:`~.event_loop.EventLoopThread`.

Writing is bounded and never blocks the caller; whatever was not written when the connection broke is thrown away,
so that nothing of ours is sent behind the window's back after a reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.nuid import NUID

from mama_spark.errors import ConfigError, MamaError, Unavailable

from ..errors import denied
from ..protocol import parser
from ..protocol.acks import AckColumns, Reply, classify, classify_parts
from ..protocol.frames import PublishFrames
from ..settings import NatsSettings
from .ack_parser import AckParser, read_in_bulk, supported
from .client_errors import from_client
from .event_loop import EventLoopThread
from .nats_py_compat import TlsClient, close_abandoned, close_client, stop_reconnecting

MAX_UNWRITTEN = 8 * 1024 * 1024
_PING_INTERVAL = 20
Row = tuple[int, str, bytes, str, dict[str, str] | None]  # token, subject, payload, reply, headers


class Consumer(Protocol):
    """Who is told what comes in, on the loop's thread."""

    def on_acks(self, columns: list[AckColumns]) -> None: ...
    def on_reply(self, subject: bytes, reply: Reply) -> None: ...
    def on_denied(self, kind: str, subject: str, exact: bool) -> None: ...
    def on_unsent(self, token: int, error: BaseException) -> None: ...
    def on_disconnected(self) -> None: ...
    def on_reconnected(self) -> None: ...
    def on_closed(self, info: str) -> None: ...
    def on_written(self, size: int) -> None: ...


class Connection:
    """A connection, alive or being re-made by nats-py."""

    def __init__(self, loop: EventLoopThread, client: Client, fast: bool | None) -> None:
        self.loop, self.client = loop, client
        self.inbox = b"_INBOX.%s." % bytes(NUID().next())
        self.consumer: Consumer | None = None
        self.next_token = 0  #: numbers on the wire; a lease begins where the last one ended
        self.unwritten = 0  #: bytes taken and not yet given to the kernel
        self.facts: dict[str, tuple[float, Any]] = {}  #: what checks found out, by question: when and what
        self.owned = True
        self.closed = False
        self.errors: list[BaseException] = []
        self._wanted = fast
        self.fast = False
        self._up = False
        self._epoch = 0
        self._out: deque[PublishFrames] = deque()
        self._rows: deque[list[Row]] = deque()
        self._publishing: asyncio.Task[None] | None = None
        self.subscription: Subscription | None = None
        self._denials: dict[str, asyncio.Future[str]] = {}
        #: Whose is a denial (kind, subject)? The consumer is told of what is none of theirs. On the loop's thread.
        self.denial_handlers: list[Callable[[str, str], bool]] = []

    def __repr__(self) -> str:
        state = "closed" if self.closed else "up" if self.up else "down"
        return f"<Connection {state}, {'fast' if self.fast else 'public'}, {self.unwritten} bytes unwritten>"

    @property
    def up(self) -> bool:
        return self._up and self.client.is_connected

    # --- opening ---------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, loop: EventLoopThread, settings: NatsSettings) -> Connection:
        """Connect and subscribe to the inbox.

        :raises ConfigError: credentials, TLS, or the inbox is denied
        :raises Unavailable: nobody answers
        """
        options = _connect_options(settings)
        connection = cls(loop, TlsClient() if "tls" in options else Client(), settings.fast)
        fatal: asyncio.Future[MamaError] = loop.loop.create_future()

        async def on_error(error: Exception) -> None:
            close_abandoned(connection.client)
            connection.errors.append(error)
            translated = from_client(error)
            if isinstance(translated, ConfigError) and not fatal.done():
                fatal.set_result(translated)
            connection._on_error(error)

        connecting = asyncio.ensure_future(
            connection.client.connect(
                error_cb=on_error,
                disconnected_cb=connection._on_disconnected,
                reconnected_cb=connection._on_reconnected,
                closed_cb=connection._on_closed,
                **options,
            )
        )
        first: set[asyncio.Future[Any]] = {connecting, fatal}
        await asyncio.wait(first, timeout=settings.connect_timeout, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done() or connecting.exception() is not None or not connection.client.is_connected:
            await connection._give_up(connecting)
            raise connection._why_not(fatal, connecting, settings)
        try:
            await connection.start(settings.connect_timeout)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _give_up(self, connecting: asyncio.Future[Any]) -> None:
        while not connecting.done():  # it may swallow that it is cancelled, see stop_reconnecting
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=0.1)
        await self.close()

    def _why_not(
        self, fatal: asyncio.Future[MamaError], connecting: asyncio.Future[Any], settings: NatsSettings
    ) -> MamaError:
        servers = ", ".join(settings.shown_servers)
        if fatal.done():
            error = fatal.result()
            return type(error)(f"cannot connect to {servers}: {error}")
        if not connecting.cancelled() and connecting.done() and (cause := connecting.exception()) is not None:
            error = from_client(cause)
            return type(error)(f"cannot connect to {servers}: {error}")
        last = f" ({self.errors[-1]})" if self.errors else ""
        return Unavailable(f"no NATS server answers within {settings.connect_timeout:g} s at {servers}{last}")

    async def start(self, timeout: float) -> None:
        """Subscribe to the inbox and make sure that the server lets us.

        :raises ConfigError: it does not
        """
        self.fast = supported(self.client) if self._wanted is None else self._wanted and supported(self.client)
        if self.fast:
            client: Any = self.client
            read_in_bulk(client)
            client._ps = AckParser(client._ps, self.inbox, self._on_acks, self._on_frame, self._on_exact_denied)
        subject = self.inbox.decode() + ">"
        refused: asyncio.Future[str] = self.loop.loop.create_future()
        self._denials[subject.lower()] = refused
        try:
            self.subscription = await self.client.subscribe(
                subject, cb=self._on_message, pending_bytes_limit=0, pending_msgs_limit=0
            )
            await self.client.flush(max(1, int(timeout)))
            await self.client.flush(max(1, int(timeout)))  # the client writes a PING ahead of a SUB that waits
        except (TimeoutError, nats.errors.Error, OSError) as e:
            raise from_client(e) from e
        finally:
            self._denials.pop(subject.lower(), None)
        if refused.done():
            raise ConfigError(f"no permission to subscribe to the inbox {subject!r}: no acknowledgement would arrive")
        self._up = True
        if self._rows:
            self._publish_soon()

    async def ask(self, subject: str, payload: bytes, timeout: float) -> dict[str, Any] | None:
        """Request to the JetStream API; None when the permissions forbid it.

        :raises ConfigError, Unavailable: nobody answers
        """
        reply = await self.request(subject, payload, timeout)
        if reply is None:
            return None
        try:
            answer: dict[str, Any] = orjson.loads(reply.data)
        except ValueError as e:
            raise Unavailable(f"no answer to {subject}: {e}") from e
        return answer

    async def request(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None = None
    ) -> Msg | None:
        """Any request, a publish that is acknowledged included; None when the permissions forbid it.

        :raises nats.errors.NoRespondersError: nobody is there to answer
        :raises Unavailable: nobody answers in time
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
        """A future that is done when the server says that ``subject`` is forbidden; several may wait for one."""
        key = subject.lower()
        refused = self._denials.get(key) or self.loop.loop.create_future()
        self._denials[key] = refused
        try:
            yield refused
        finally:
            if self._denials.get(key) is refused:
                self._denials.pop(key)

    async def close(self) -> None:
        """For good. Never raises."""
        self.closed, self._up = True, False
        self._drop_out()
        if self._publishing is not None:
            self._publishing.cancel()
        if self.owned:
            await close_client(self.client)

    async def release(self) -> None:
        """Leave a client that is not ours as it was found."""
        self._up = False
        if self._publishing is not None:
            self._publishing.cancel()
        if self.subscription is not None:
            with contextlib.suppress(Exception):
                await self.subscription.unsubscribe()

    # --- writing ---------------------------------------------------------------------------------------------

    def write(self, frames: PublishFrames) -> None:
        """Hand over whole frames; from any thread."""
        self.unwritten += frames.size
        self._out.append(frames)
        self.loop.soon(self._push)

    def publish(self, rows: list[Row]) -> None:
        """Hand over messages for the public calls; from any thread."""
        self.unwritten += sum(len(r[2]) for r in rows)
        self._rows.append(rows)
        self.loop.soon(self._publish_soon)

    def _push(self) -> None:
        if not self._out:
            return
        if not self.up:
            self._drop_out()
            return
        client: Any = self.client
        size, queued = 0, 0
        while self._out:
            frames = self._out.popleft()
            client._pending.extend(frames.pieces)
            client._pending_data_size += frames.size
            size += frames.size
            queued += 1
        flushed: asyncio.Future[None] = self.loop.loop.create_future()
        epoch = self._epoch
        flushed.add_done_callback(lambda _: self._written(size, epoch))
        client._flush_queue.put_nowait(flushed)

    def _written(self, size: int, epoch: int) -> None:
        if epoch == self._epoch:
            self.unwritten -= size
            if self.consumer is not None:
                self.consumer.on_written(size)

    def _publish_soon(self) -> None:
        if self._publishing is None or self._publishing.done():
            self._publishing = self.loop.loop.create_task(self._publish())

    async def _publish(self) -> None:
        while self._rows and self._up:
            rows, epoch = self._rows.popleft(), self._epoch
            for i, (token, subject, payload, reply, headers) in enumerate(rows):
                if epoch != self._epoch:
                    return  # the connection broke: what is left was never sent, and the window knows it as in doubt
                try:
                    await self.client.publish(subject, payload, reply=reply, headers=headers)
                except Exception as e:  # noqa: BLE001 - the error goes to the flight
                    if self.consumer is not None:
                        self.consumer.on_unsent(token, e)
                if i % 64 == 63:
                    await asyncio.sleep(0)
            self._written(sum(len(r[2]) for r in rows), epoch)

    def _drop_out(self) -> None:
        """Forget everything not written: also what waits in the client for a reconnect."""
        self._epoch += 1
        self._out.clear()
        self._rows.clear()
        self.unwritten = 0
        if self.fast:
            client: Any = self.client
            client._pending = [p for p in client._pending if not isinstance(p, memoryview)]
            client._pending_data_size = sum(len(p) for p in client._pending)

    # --- what comes in ---------------------------------------------------------------------------------------

    def _on_acks(self, columns: list[AckColumns]) -> None:
        if self.consumer is not None:
            self.consumer.on_acks(columns)

    def _on_frame(self, frame: parser.Frame) -> None:
        if self.consumer is not None:
            self.consumer.on_reply(frame.subject, classify(frame))

    async def _on_message(self, msg: Msg) -> None:
        headers = msg.headers or {}
        status = headers.get("Status", "0")
        reply = classify_parts(
            int(status) if status.isdigit() else 0,
            headers.get("Description", ""),
            msg.data,
            headers.get("Nats-Subject", ""),
        )
        if self.consumer is not None:
            self.consumer.on_reply(msg.subject.encode(), reply)

    def _on_exact_denied(self, kind: str, subject: str) -> None:
        self._denied(kind, subject, exact=True)

    def _on_error(self, error: Exception) -> None:
        violation = denied(str(error))
        if violation is not None:
            self._denied(*violation, exact=False)

    def _denied(self, kind: str, subject: str, exact: bool) -> None:
        waiting = self._denials.get(subject.lower())
        if waiting is not None and not waiting.done():
            waiting.set_result(subject)
        elif not any(handler(kind, subject) for handler in self.denial_handlers) and self.consumer is not None:
            self.consumer.on_denied(kind, subject, exact)

    def denial_of(self, subject: str) -> asyncio.Future[str]:
        """Done once the server denies this subject, for which the consumer is then not told; on the loop's thread."""
        waiting = self._denials.get(subject.lower())
        if waiting is None or waiting.done():
            waiting = self._denials[subject.lower()] = self.loop.loop.create_future()
        return waiting

    def forget_denial(self, subject: str) -> None:
        """What :meth:`denial_of` gave is of no more interest."""
        self._denials.pop(subject.lower(), None)

    async def _on_disconnected(self) -> None:
        was_up, self._up = self._up, False
        self._drop_out()
        if was_up and self.consumer is not None:
            self.consumer.on_disconnected()

    async def _on_reconnected(self) -> None:
        self.facts.clear()
        stop_reconnecting(self.client)
        if self.fast:
            read_in_bulk(self.client)
        self._up = True
        if self.consumer is not None:
            self.consumer.on_reconnected()

    async def _on_closed(self) -> None:
        already, self.closed, self._up = self.closed, True, False
        if not already and self.consumer is not None:
            self.consumer.on_closed(str(self.client.last_error or "the connection was closed"))

    def remember(self, question: str, seconds: float = 60.0) -> Any | None:
        """What was found out less than ``seconds`` ago."""
        found = self.facts.get(question)
        return found[1] if found is not None and time.monotonic() - found[0] < seconds else None

    def note(self, question: str, answer: Any) -> None:
        self.facts[question] = (time.monotonic(), answer)


def _connect_options(settings: NatsSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": list(settings.servers),
        "name": settings.name,
        "connect_timeout": settings.connect_timeout,
        "max_reconnect_attempts": -1,  # how long it is worth it is for the publisher to say
        "reconnect_time_wait": 0.1,
        "ping_interval": _PING_INTERVAL,
        "flusher_queue_size": 0,
    }
    if settings.user is not None:
        options["user"], options["password"] = settings.user, settings.password or ""
    if settings.token is not None:
        options["token"] = settings.token
    for name, path, option in (
        ("nkeySeed", settings.nkey_seed, "nkeys_seed"),
        ("credentials", settings.credentials, "user_credentials"),
    ):
        if path is not None:
            if not os.path.isfile(path):
                # a seed that was given instead of its file must not be shown
                shown = "" if name == "nkeySeed" else f" {path!r}"
                raise ConfigError(f"{name}: there is no such file{shown}")
            options[option] = path
    if settings.tls_ca or settings.tls_cert or any(s.startswith("tls:") for s in settings.servers):
        options["tls"] = _tls(settings)
    return options


def _tls(settings: NatsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
        raise ConfigError(f"cannot read the TLS files: {e}") from e
    return context
