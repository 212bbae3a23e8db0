"""The thread and the socket of a client: they obey the machine (:mod:`.state_machine`).

Everybody else talks to the machine under :attr:`ClientConnection.changed`, a condition that is notified whenever
something came, and then calls :meth:`ClientConnection.wake`. Only the thread touches the socket.
"""

from __future__ import annotations

import logging
import math
import socket as sockets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import parse_monitor_message

from mama_spark.errors import BackgroundTaskFailed, ClientClosed, ConfigError, MamaError, Unavailable

from ..protocol.commands import SIGNATURE, Open
from ..protocol.extensions import Feature
from ..zmq_fd_poller import receive
from .state_machine import Call, ClientMachine, ClientSettings, ClientState
from .zmtp_probe import mechanism_of

log = logging.getLogger(__name__)

PORT = 9999
#: What mama-spark's own clients announce.
FEATURES = Feature.CREDIT | Feature.SEQUENCE | Feature.ACKS | Feature.CONFIRM | Feature.HEADERS | Feature.SENDING
#: Octets that may wait for the socket; beyond, whoever sends waits.
MAX_UNWRITTEN = 4 * 1024 * 1024
#: Messages taken from the socket before others have their turn.
ROUND = 500
#: A connection that breaks sooner than this many seconds after it was made, and before the broker answered, is left to
#: ZeroMQ's own pace of trying.
_FLAPPING = 0.5
#: Seconds from which a round is so long (the process was stopped, or the machine is overloaded) that what the broker
#: said meanwhile is yet to be read; idle, one takes a second.
_DEAF = 1.5
_MORE_NOW = zmq.SNDMORE | zmq.NOBLOCK
_OPENING = SIGNATURE + bytes([Open.id])
_SECRET = frozenset({"password", "curve_secret_key"})
_EVENTS: dict[int, str] = {
    zmq.EVENT_CONNECT_RETRIED: "nobody listens there",
    zmq.EVENT_DISCONNECTED: "the connection was lost",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: do login and keys go with the broker?",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the broker wants another security mechanism",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the broker refused the login",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "",
}
_HANDSHAKES = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
#: What follows a handshake that failed, and says less.
_CONSEQUENCES = (zmq.EVENT_CONNECT_RETRIED, zmq.EVENT_DISCONNECTED)
#: Handshakes in a row that fail without a reason until the broker is asked for its mechanism, and seconds for that.
_UNEXPLAINED = 2
_GREETING = 1.0
_MISMATCH = 0x11000002  #: ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionSettings:
    """Times in seconds.

    :param urls: ``mlp://host:port`` (port 9999 if there is none); the next one is tried when a connection is lost
    :param address: of the client; the broker keeps mail for it. Empty = anonymous
    :param user: with ``password``: PLAIN login
    :param curve_server_key: the broker's public key (Z85, 40 characters): CURVE. Without a key pair of its own
        (``curve_public_key``, ``curve_secret_key``) the client makes one up
    :param features: what is announced to the broker; None = nothing, as the C client
    :param ping: between PINGs
    :param silence: without input, after which the connection is made anew
    :param high_water: messages that ZeroMQ may hold in each direction, of whatever size: keep it low
    """

    urls: tuple[str, ...] = ("mlp://127.0.0.1:9999",)
    address: str = ""
    user: str | None = None
    password: str | None = None
    curve_server_key: str | None = None
    curve_public_key: str | None = None
    curve_secret_key: str | None = None
    features: Feature | None = FEATURES
    ping: float = 1.0
    silence: float = 4.0
    high_water: int = 100

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("no broker is named")
        for url in self.urls:
            endpoint(url)
        if (self.user is None) != (self.password is None):
            raise ConfigError("a PLAIN login needs user and password")
        if "" in (self.user, self.password) or any(
            len((text or "").encode()) > 255 for text in (self.user, self.password)
        ):
            raise ConfigError("user and password have 1 to 255 octets")
        keys = (self.curve_server_key, self.curve_public_key, self.curve_secret_key)
        if any(keys) and self.curve_server_key is None:
            raise ConfigError("CURVE needs the broker's public key")
        if (self.curve_public_key is None) != (self.curve_secret_key is None):
            raise ConfigError("the public and the secret CURVE key go together")
        if self.user is not None and self.curve_server_key is not None:
            raise ConfigError("PLAIN and CURVE exclude each other")
        if any(key is not None and len(key) != 40 for key in keys):
            raise ConfigError("a CURVE key has 40 characters (Z85)")

    def __repr__(self) -> str:
        shown = []
        for f in fields(self):
            value: Any = getattr(self, f.name)
            if f.name == "urls":
                value = ",".join(map(endpoint, value))
            elif value == f.default:
                continue
            shown.append(f"{f.name}={'<hidden>' if f.name in _SECRET else repr(value)}")
        return f"ConnectionSettings({', '.join(shown)})"


def endpoint(url: str) -> str:
    """ZeroMQ's name of a broker: ``mlp://host`` and ``mlp://host:9999/stream`` are ``tcp://host:9999``.

    :raises ConfigError: it is none
    """
    scheme, sep, rest = url.strip().partition("://")
    if sep and scheme.lower() in ("ipc", "inproc") and rest:
        return f"{scheme.lower()}://{rest}"
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise ConfigError(f"the url of a broker is mlp://host:port: {e}") from None
    if scheme.lower() not in ("mlp", "tcp") or not host:
        raise ConfigError("the url of a broker is mlp://host:port")
    if parts.username is not None:
        raise ConfigError("a login stands in user and password, not in the url")
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port or PORT}"


@dataclass(slots=True)
class _Outbox:
    """Frames on their way to the socket."""

    frames: list[Sequence[bytes]] = field(default_factory=list)
    at: int = 0
    size: int = 0

    @property
    def done(self) -> bool:
        return self.at >= len(self.frames)


class ClientConnection:
    """One connection of one client.

    :ivar machine: use it under :attr:`changed` only
    :ivar changed: notified when something came or ended
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        address = settings.address.encode("utf-8", "surrogateescape")
        self.machine = ClientMachine(ClientSettings(address, settings.features, settings.ping, settings.silence))
        self.changed = threading.Condition()
        self.fatal: MamaError | None = None  #: nobody need wait any more
        self._endpoints = [endpoint(url) for url in settings.urls]
        self._turn = 0
        self._trouble = ""
        self._shaken = False  # the last handshake failed
        self._unexplained = 0  # handshakes in a row that failed, nobody said why
        self._queued = 0  # octets in machine.out that came through account()
        self._outbox = _Outbox()
        self._reconnects = 0
        self._stop = False
        self._woken = False
        self._made = 0.0
        self._listened = math.inf  # when the last round began
        self._near, self._far = sockets.socketpair()
        self._far.setblocking(False)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"mama-malamute-{settings.address}", daemon=True)

    @property
    def endpoint(self) -> str:
        return self._endpoints[self._turn % len(self._endpoints)]

    @property
    def connected(self) -> bool:
        return self.machine.state is ClientState.CONNECTED and self.fatal is None

    @property
    def room(self) -> int:
        """Octets that may be queued now."""
        return MAX_UNWRITTEN - self._queued - self._outbox.size

    def account(self, octets: int) -> None:
        """The machine was given messages of so many octets."""
        self._queued += octets

    # --- calls, of any thread ------------------------------------------------------------------------------------

    def open(self, timeout: float) -> None:
        """Connect.

        :raises Unavailable: nobody answers
        :raises ConfigError: the login is refused, or a key is none
        :raises CallFailed: the broker refuses this client
        """
        now = time.monotonic()
        with self.changed:
            call = self.machine.connect(now, now + timeout)
        self._thread.start()
        try:
            self.wait(call, "connecting")
        except BaseException:
            self.close(0.0)
            raise

    def wait(self, call: Call, what: str) -> None:
        """Until the call is done; the thread gives it up at its deadline.

        :raises MamaError: why it failed
        """
        self.wake()
        with self.changed:
            self.changed.wait_for(lambda: call.done or self.fatal is not None)
            error = call.error if call.done else self.fatal
            if isinstance(error, Unavailable | ClientClosed) and error is not self.fatal:
                raise type(error)(self.explain(what, str(error))) from error
            if error is not None:
                raise error

    def explain(self, what: str, error: str) -> str:
        """The text of an error, with what is known of the connection."""
        return f"{what}: {error} ({self.endpoint}{': ' if self._trouble else ''}{self._trouble})"

    def wake(self) -> None:
        """The machine has something to say."""
        if not self._woken:
            self._woken = True
            with suppress(OSError):  # closed, or so full that it wakes anyway
                self._near.send(b".")

    def close(self, timeout: float) -> None:
        """Say CLOSE behind all that was sent and wait for the answer; then end the thread. Idempotent, never raises."""
        if self._stop:
            return
        if self._thread.ident is not None:
            with self.changed:
                call = self.machine.close(time.monotonic() + timeout) if self.fatal is None else None
            self.wake()
            with self.changed:
                self.changed.wait_for(lambda: call is None or call.done or self.fatal is not None, timeout + 1.0)
                self._stop = True
            self._woken = False
            self.wake()
            self._thread.join()
        else:
            self._stop = True
        self._near.close()
        self._far.close()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._context = zmq.Context()
            self._renew()
            while self._round():
                pass
        except BaseException as e:  # noqa: BLE001 whatever it is, whoever waits must hear of it
            error = e if isinstance(e, MamaError) else BackgroundTaskFailed(f"the client ended with {e!r}")
            error.__cause__ = e if error is not e else None
            self._fail(error)
        finally:
            self._drop()
            if self._context is not None:
                self._context.term()

    def _fail(self, error: MamaError) -> None:
        with self.changed:
            self.fatal = self.fatal or error
            self.changed.notify_all()

    def _round(self) -> bool:
        assert self._socket is not None
        with self.changed:
            if self._stop:
                return False
            now = time.monotonic()
            self._woken = False
            if now - self._listened > _DEAF:
                self.machine.forgive(now - self._listened, now)
            self._listened = now
            self.machine.tick(now)
            self.changed.notify_all()
            if self.machine.reset:
                self.machine.reset = False
                self._renew()
            self._take_out()
            patience = self.machine.next_tick() - now
        self._write()
        self._poll(max(0.0, min(patience, 1.0)))
        return True

    def _take_out(self) -> None:
        machine, box = self.machine, self._outbox
        if machine.reconnects != self._reconnects:
            # what was said before OPEN means nothing any more; the machine says again what matters
            self._reconnects = machine.reconnects
            box.frames, box.at, box.size, self._queued = [], 0, 0, 0
            first = next((i for i, frames in enumerate(machine.out) if frames[0].startswith(_OPENING)), 0)
            del machine.out[:first]
        if box.done and machine.out:
            box.frames, box.at, box.size = list(machine.out), 0, self._queued
            machine.out, self._queued = [], 0

    def _write(self) -> None:
        """As much as the socket takes."""
        assert self._socket is not None
        send, box = self._socket.send, self._outbox
        frames, at = box.frames, box.at
        try:
            while at < len(frames):
                message = frames[at]
                if len(message) == 1:
                    send(message[0], zmq.NOBLOCK)
                else:
                    send(message[0], _MORE_NOW)
                    for frame in message[1:-1]:  # a message of which the socket took the first part fits whole
                        send(frame, zmq.SNDMORE)
                    send(message[-1])
                at += 1
        except zmq.Again:
            box.at = at
            return
        if frames:
            with self.changed:
                box.frames, box.at, box.size = [], 0, 0
                self.changed.notify_all()

    def _poll(self, patience: float) -> None:
        assert self._socket is not None
        poller = zmq.Poller()
        poller.register(self._far, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN if self._outbox.done else zmq.POLLIN | zmq.POLLOUT)
        if self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
        more = self._outbox.done and bool(self.machine.out)
        ready = dict(poller.poll(0 if more else int(patience * 1000) + 1))
        if self._far.fileno() in ready:
            with suppress(BlockingIOError):
                self._far.recv(4096)
        if self._socket in ready:
            self._read()
        if self._monitor is not None and self._monitor in ready:
            self._watch()

    def _read(self) -> None:
        assert self._socket is not None
        came: list[list[bytes]] = []
        with suppress(zmq.Again):
            while len(came) < ROUND:
                came.append(receive(self._socket, zmq.NOBLOCK))
        now = time.monotonic()
        with self.changed:
            for frames in came:
                self.machine.receive(frames, now)
            self.changed.notify_all()

    def _watch(self) -> None:
        """What ZeroMQ says of the connection."""
        assert self._monitor is not None
        while self._monitor is not None and self._monitor.poll(0):
            message = parse_monitor_message(self._monitor.recv_multipart())
            event = message["event"]
            if not self._shaken or event not in _CONSEQUENCES:
                self._trouble = _EVENTS[event]
            self._shaken = event in _HANDSHAKES or (self._shaken and event in _CONSEQUENCES)
            if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._unexplained += 1
                self._find_reason()
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._unexplained = 0
            mismatch = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and message["value"] == _MISMATCH
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or mismatch:
                self._fail(ConfigError(f"{self.endpoint}: {self._trouble}"))
            elif event == zmq.EVENT_DISCONNECTED:
                with self.changed:
                    now = time.monotonic()
                    settled = self.machine.state in (ClientState.CONNECTED, ClientState.TERMINATING)
                    if settled or now - self._made > _FLAPPING:
                        self.machine.lost(now)
                        return  # the socket will be replaced

    def _find_reason(self) -> None:
        """A broker that lives, has CURVE and ends the handshake of a CURVE client does so for its own key."""
        asked = self.settings.curve_server_key is not None and self._unexplained >= _UNEXPLAINED
        if asked and self.machine.state is ClientState.CONNECTING and mechanism_of(self.endpoint, _GREETING) == "CURVE":
            self._trouble = "the broker has another key than curve_server_key"
            self._fail(ConfigError(f"{self.endpoint}: {self._trouble}"))

    def _renew(self) -> None:
        """A new socket: to the broker a new client, so that nothing of the old one is mixed with it."""
        if self._socket is not None:
            self._turn += 1
        self._drop()
        assert self._context is not None
        made = self._context.socket(zmq.DEALER)
        self._socket = made
        made.linger = 0
        made.set_hwm(self.settings.high_water)
        made.setsockopt(zmq.IPV6, 1)
        self._secure(made)
        self._monitor = made.get_monitor_socket(sum(_EVENTS))
        try:
            made.connect(self.endpoint)
        except zmq.ZMQError as e:
            raise ConfigError(f"{self.endpoint} is no place to connect to: {e}") from e
        self._made = time.monotonic()
        self._shaken = False

    def _secure(self, made: zmq.Socket[bytes]) -> None:
        s = self.settings
        if s.user is not None and s.password is not None:
            made.plain_username = s.user.encode()
            made.plain_password = s.password.encode()
        if s.curve_server_key is not None:
            if not zmq.has("curve"):
                raise ConfigError("this build of ZeroMQ has no CURVE")
            try:
                public, secret = zmq.curve_keypair()
                made.curve_serverkey = s.curve_server_key.encode()
                made.curve_publickey = s.curve_public_key.encode() if s.curve_public_key else public
                made.curve_secretkey = s.curve_secret_key.encode() if s.curve_secret_key else secret
            except (zmq.ZMQError, ValueError):
                raise ConfigError("a CURVE key is not Z85") from None

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(0)
        if self._monitor is not None:
            self._monitor.close(0)
        self._socket = self._monitor = None
