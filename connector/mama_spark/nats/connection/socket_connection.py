"""Connection to a NATS cluster, driven by the calling thread: subscriptions, requests, one inbox for acknowledgements.

Nothing is read between two calls of :meth:`SocketConnection.drive`; threads that share a connection take turns. Bytes
unwritten at a disconnect are discarded: nothing unknown to the publisher's window is sent after a reconnect.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from mama_spark.contracts.connection_pool import require_file_descriptors
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

from ..error_codes import not_subscribed
from ..protocol import client_events as wire
from ..protocol.acks import AckColumns, Reply, classify
from ..protocol.client import Take
from ..protocol.client_events import Cause
from ..protocol.frames import PublishFrames
from ..protocol.parser import Frame
from ..protocol.server_pool import Server
from ..settings import NatsSettings
from .login import refusal
from .requests import Denials, ExpectedAnswers, Requests
from .socket_driver import SAYS_NOTHING, SocketDriver, Written

logger = logging.getLogger("mama_spark")

MAX_UNWRITTEN = 8 * 1024 * 1024
_FILE_DESCRIPTORS = 8  #: one for the socket, some for moments of name lookup and certificates
FRESH = 60.0  #: seconds for which the result of a check is valid


class ConnectionListener(Protocol):
    """Gets all that a connection reads, on the thread that drives it."""

    def on_acks(self, columns: list[AckColumns]) -> None: ...
    def on_reply(self, subject: bytes, reply: Reply) -> None: ...
    def on_denied(self, kind: str, subject: str, exact: bool) -> None: ...
    def on_disconnected(self, why: str = "") -> None: ...
    def on_reconnected(self) -> None: ...
    def on_written(self, size: int) -> None: ...


class Checks:
    """Results of checks of a server, shared by successive bridges on a connection; cleared by a reconnect."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._results: dict[str, tuple[float, Any]] = {}  # time and value
        self.clear = self._results.clear

    def cached(self, question: str) -> Any | None:
        """The result of a check less than :data:`FRESH` old."""
        found = self._results.get(question)
        return found[1] if found is not None and self._clock() - found[0] < FRESH else None

    def cache(self, question: str, answer: Any) -> None:
        self._results[question] = (self._clock(), answer)


class SocketConnection:
    """Connects again when the connection breaks.

    :param clock, only: see :class:`.SocketDriver`
    :ivar inbox: subject prefix of replies, with its trailing dot
    :ivar next_token: next token on the wire; each bridge continues after the one before it
    :ivar denials: callbacks for permission errors, called before the listener
    """

    def __init__(
        self, settings: NatsSettings, clock: Callable[[], float] = time.monotonic, only: Server | None = None
    ) -> None:
        self._settings = settings
        self.inbox = f"{new_inbox()}.".encode()
        self.driver = SocketDriver(settings, self.inbox, self._on_event, clock, only)
        self._once = only is not None
        self._opened = self._was_up = False
        self._pong = self._losses = 0
        self._callbacks: dict[bytes, Callable[[Frame], None]] = {}  # by subscription id
        self.answers = ExpectedAnswers(self.inbox)
        self.denials = Denials()
        self.requests = Requests(self)
        self._checks = Checks(clock)
        self.cached, self.cache = self._checks.cached, self._checks.cache
        self.listener: ConnectionListener | None = None
        self.next_token = 0
        self.pid = os.getpid()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.driver.protocol.state.value
        return f"<SocketConnection {state}, {self.unwritten} bytes unwritten>"

    @property
    def up(self) -> bool:
        return self.driver.up

    @property
    def doubted(self) -> bool:
        """The server was asked for a sign of life, and has not answered yet."""
        return self.driver.protocol.doubts

    @property
    def info(self) -> wire.ServerInfo:
        """INFO of the present or last server."""
        return self.driver.protocol.info

    @property
    def api_prefix(self) -> str:
        return self._settings.api_prefix

    @property
    def server(self) -> str:
        """Name, version and address of the server."""
        return f"nats-server {self.info.version} at {self.driver.servers.current.address}"

    @property
    def turn(self) -> threading.Condition:
        """Lock of the thread that uses the connection or its listener."""
        return self.driver.turn

    @property
    def unwritten(self) -> int:
        """Bytes accepted and not written yet."""
        return self.driver.unwritten

    @property
    def closed(self) -> bool:
        return self.driver.closed

    @property
    def why_down(self) -> str:
        """Why a lost connection is not restored; empty = unknown."""
        lost = self.driver.lost
        return "" if self.up or lost is None else f"cannot connect to NATS again: {error_of(lost)}"

    def loss(self) -> Callable[[], bool]:
        """Whether the present connection is lost, also after a reconnect."""
        before = self._losses
        return lambda: self._losses != before or not self.up

    # --- opening -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect and subscribe to the inbox.

        :raises ConfigError: credentials, TLS, or the inbox is denied
        :raises Unavailable: no server answers
        """
        timeout = self._settings.connect_timeout
        try:
            require_file_descriptors(_FILE_DESCRIPTORS, "a connection to NATS")
            self.drive(timeout, lambda: self.up or self._is_refused())
            if not self.up:
                raise _connect_error(self.driver, self._settings)
            self.subscribe(self.inbox.decode() + ">", None, timeout)
        except BaseException:
            self.close()
            raise

    def _is_refused(self) -> bool:
        lost = self.driver.lost
        return lost is not None and (self._once or _is_final(lost))

    def close(self) -> None:
        """Close for good. Never raises."""
        self.driver.close()

    # --- events of the protocol ----------------------------------------------------------------------------------

    def _on_event(self, event: wire.Event | Written) -> None:
        match event:
            case wire.Acked(columns):
                if self.listener is not None:
                    self.listener.on_acks(columns)
            case Written(size):
                if self.listener is not None:
                    self.listener.on_written(size)
            case wire.Received(frame):
                self._on_received(frame)
            case wire.Ponged(number):
                self._pong = number
            case wire.Connected():
                self._checks.clear()
                again, self._was_up, self._opened = self._opened, True, True
                if again and self.listener is not None:
                    self.listener.on_reconnected()
            case wire.Denied(kind, subject):
                if not self.denials.tell(kind, subject) and self.listener is not None:
                    self.listener.on_denied(kind, subject, True)
            case wire.Complaint(text):
                if self.cached(text) is None:
                    logger.warning("%s says: %s", self.server, text)
                    self.cache(text, True)
            case wire.Lost(cause):
                was_up, self._was_up = self._was_up, False
                self._losses += was_up
                if was_up and self.listener is not None:
                    self.listener.on_disconnected("" if cause is Cause.CLOSED else error_of(event))

    def _on_received(self, frame: Frame) -> None:
        if not frame.subject.startswith(self.inbox):
            if (callback := self._callbacks.get(frame.sid)) is not None:
                callback(frame)
            return
        if not self.answers.take(frame) and self.listener is not None:
            self.listener.on_reply(frame.subject, classify(frame))

    # --- sending -------------------------------------------------------------------------------------------------

    def drive(self, timeout: float, done: Callable[[], bool] = lambda: False) -> None:
        self.driver.drive(timeout, done)

    def write(self, frames: PublishFrames) -> None:
        """Write complete frames, now or when the socket takes them; they are dropped while the connection is down."""
        with self.turn:
            self.driver.write(frames.pieces, frames.size)

    def publish(self, subject: str, payload: bytes, reply: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Send one message to a subject that the caller has checked. Unavailable: not connected."""
        with self.turn:
            self.driver.send(self.driver.protocol.send_message(subject, payload, reply, headers))
            self.driver.flush()

    def subscribe(self, subject: str, callback: Callable[[Frame], None] | None, timeout: float) -> int:
        """Subscribe; returns the id once the server accepts. ConfigError: it refuses. Unavailable: no answer within
        ``timeout`` seconds."""
        sid = self.subscribe_soon(subject, callback)
        kinds: list[str] = []
        try:
            with self.denials.watch(subject, kinds.append):
                self.ping(timeout)
            if kinds:
                raise not_subscribed(kinds[0], subject)
        except BaseException:
            self.unsubscribe(sid)
            raise
        return sid

    def subscribe_soon(
        self, subject: str, callback: Callable[[Frame], None] | None, bulk: Callable[[int], Take] | None = None
    ) -> int:
        """Subscribe without waiting for the server; returns the id of the subscription.

        :param bulk: makes of this id the receiver of messages before they become frames
        """
        with self.turn:
            sid, data = self.driver.protocol.send_subscribe(subject)
            self.driver.send(data)
            if callback is not None:
                self._callbacks[b"%d" % sid] = callback
            if bulk is not None:
                self.driver.protocol.deliveries[sid] = bulk(sid)
            return sid

    def unsubscribe(self, sid: int) -> None:
        """End a subscription; its callback gets nothing more."""
        with self.turn:
            self._callbacks.pop(b"%d" % sid, None)
            self.driver.send(self.driver.protocol.send_unsubscribe(sid))
            self.driver.flush()

    def ping(self, timeout: float) -> None:
        """Wait until the server has read all that was sent. Unavailable: not within ``timeout`` seconds."""
        with self.turn:
            lost = self.loss()
            number, data = self.driver.protocol.send_ping()
            self.driver.send(data)
        self.drive(timeout, lambda: self._pong >= number or lost())
        if self._pong < number:
            why = "because the connection was lost" if lost() else f"within {timeout:g} s"
            raise Unavailable(f"{self.server} did not answer {why}")


def new_inbox() -> str:
    return "_INBOX." + secrets.token_hex(11)


def _connect_error(driver: SocketDriver, settings: NatsSettings) -> MamaError:
    servers, timeout = ", ".join(settings.shown_servers), settings.connect_timeout
    lost = driver.lost
    if lost is not None and _is_final(lost):
        return ConfigError(f"cannot connect to {servers}: {error_of(lost)}")
    said = driver.account()
    each = [f"{address}: {text}" for address, text in said.items()] if len(said) > 1 else []
    if not each and lost is not None and lost.cause is not Cause.TIMEOUT:
        each = [lost.text]
    last = f" ({'; '.join(each)})" if each else ""
    advice = "start one there, or correct option url (of commands: --url)"
    if lost is not None and lost.cause is Cause.SERVER:
        advice = "its log may say more"
    elif SAYS_NOTHING in said.values():
        first = "greets before TLS: leave out" if settings.tls_handshake_first else "begins with TLS: set"
        advice = (
            "what listens there does not greet as a NATS server does: it hangs, has no room for more connections, "
            f"is no NATS server, or {first} option tlsHandshakeFirst"
        )
    return Unavailable(
        f"no NATS server answers within {timeout:g} s at {servers}{last}; {advice} "
        "(the limit is option connectTimeout; waitTimeout begins when messages are sent)"
    )


def _is_final(lost: wire.Lost) -> bool:
    """Whether the user must act: other servers of the cluster would refuse, too."""
    return lost.cause in (Cause.REFUSED, Cause.NO_TLS)


def error_of(lost: wire.Lost) -> str:
    """Why a connection was lost, for people."""
    return refusal(lost.text) if lost.cause is Cause.REFUSED else lost.text
