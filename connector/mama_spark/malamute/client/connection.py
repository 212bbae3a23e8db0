"""The thread and the socket of a client: they execute the actions of its state machine (:mod:`.state_machine`).

Other threads use the machine under :attr:`ClientConnection.changed`, a condition notified at every input and at the
end, then call :meth:`ClientConnection.wake`. Only the thread of the connection uses the socket.
"""

from __future__ import annotations

import math
import socket as sockets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import parse_monitor_message

from mama_spark.contracts.connection_pool import require_file_descriptors
from mama_spark.contracts.errors import BackgroundTaskFailed, ClientClosed, ConfigError, MamaError, Unavailable
from mama_spark.contracts.standstill import MAX_STEP, missed_looks
from mama_spark.contracts.zmq_connections import open_context

from ..protocol.commands import SIGNATURE, Open
from ..protocol.log_query import LogQuery, LogQueryAnswer
from ..zmq_fd_poller import receive
from .calls import Call, PendingQuery
from .connection_settings import ConnectionSettings, endpoint
from .server_key_check import ServerKeyCheck
from .state_machine import ClientMachine
from .states import ClientState

#: Bytes that may be queued for the socket; at this number senders wait.
MAX_UNWRITTEN = 4 * 1024 * 1024
RECEIVE_BATCH = 500
#: Seconds. If a connection breaks sooner and before the broker answered, ZeroMQ reconnects by itself.
_FLAPPING = 0.5
_MORE_NOW = zmq.SNDMORE | zmq.NOBLOCK
_OPEN_COMMAND = SIGNATURE + bytes([Open.id])
_PROBLEMS: dict[int, str] = {
    zmq.EVENT_CONNECT_RETRIED: "nobody listens there",
    zmq.EVENT_DISCONNECTED: "the connection was lost",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: do login and keys go with the broker?",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the broker wants another security mechanism",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the broker refused the login",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "",
}
_HANDSHAKE_FAILURES = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
#: Less specific events that follow a failed handshake.
_CONSEQUENCES = (zmq.EVENT_CONNECT_RETRIED, zmq.EVENT_DISCONNECTED)
_MISMATCH = 0x11000002  #: ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


@dataclass(slots=True)
class _Outbox:
    frames: list[Sequence[bytes]] = field(default_factory=list)
    at: int = 0
    size: int = 0

    @property
    def done(self) -> bool:
        return self.at >= len(self.frames)


class ClientConnection:
    """One connection of one client. ``fatal`` is the error that ended it; callers must not wait after it."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.machine = ClientMachine(settings)
        self.changed = threading.Condition()
        self.fatal: MamaError | None = None
        self._endpoints = [endpoint(url) for url in settings.urls]
        self._endpoint_index = 0
        self._problem = ""  # last report of the socket's monitor
        self._handshake_failed = False
        self._key_check = ServerKeyCheck(settings.curve_server_key is not None)
        self._queued = 0  # bytes
        self._outbox = _Outbox()
        self._reconnects = 0
        self._stop = False
        self._woken = False
        self._connected_at = 0.0
        self._last_round = math.inf
        require_file_descriptors(2, "a Malamute client")
        self._wake_sender, self._wake_receiver = sockets.socketpair()
        self._wake_receiver.setblocking(False)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"mama-malamute-{settings.address}", daemon=True)

    @property
    def endpoint(self) -> str:
        return self._endpoints[self._endpoint_index % len(self._endpoints)]

    @property
    def connected(self) -> bool:
        return self.machine.state is ClientState.CONNECTED and self.fatal is None and self._thread.is_alive()

    @property
    def capacity(self) -> int:
        return MAX_UNWRITTEN - self._queued - self._outbox.size

    def count_queued(self, frame_bytes: int) -> None:
        self._queued += frame_bytes

    # --- any thread ----------------------------------------------------------------------------------------------

    def open(self, timeout: float) -> None:
        """Connect.

        :raises Unavailable: no broker answers
        :raises ConfigError: the login is refused, or a key is invalid
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
        """Wait until the call is done; it fails at its deadline.

        :raises MamaError: the call failed
        """
        self.wake()
        with self.changed:
            self.changed.wait_for(lambda: call.done or self.fatal is not None)
            error = call.error if call.done else self.fatal
            if isinstance(error, Unavailable | ClientClosed) and error is not self.fatal:
                raise type(error)(self.explain(what, str(error))) from error
            if error is not None:
                raise error

    def ask(self, query: LogQuery, deadline: float) -> PendingQuery:
        """Send a log query without waiting; errors as :meth:`ClientMachine.ask`."""
        with self.changed:
            pending = self.machine.ask(query, deadline)
        self.wake()
        return pending

    def wait_for_answer(self, pending: PendingQuery) -> LogQueryAnswer:
        """Wait for the broker's answer to a query; the answer may be an error.

        :raises MamaError: no answer
        """
        with self.changed:
            self.changed.wait_for(lambda: pending.done or self.fatal is not None)
            error = pending.error if pending.done else self.fatal
        if error is not None:
            raise error
        assert pending.answer is not None
        return pending.answer

    def explain(self, what: str, error: str) -> str:
        """The text of an error, with the endpoint and the last report of its socket."""
        return f"{what}: {error} ({self.endpoint}{': ' if self._problem else ''}{self._problem})"

    def wake(self) -> None:
        """Make the thread send the machine's output."""
        if not self._woken:
            self._woken = True
            with suppress(OSError):  # closed, or full: then the thread wakes anyway
                self._wake_sender.send(b".")

    def close(self, timeout: float) -> None:
        """Send CLOSE after all messages and wait for the answer; then end the thread. Idempotent, never raises."""
        if self._stop:
            return
        if self._thread.is_alive():  # a fork has none
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
        self._wake_sender.close()
        self._wake_receiver.close()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._context = open_context()
            self._connect()
            while self._round():
                pass
            self._fail(ClientClosed(f"{self.endpoint}: the connection was closed"))
        except BaseException as e:  # noqa: BLE001 callers wait for the outcome, whatever it is
            error = e if isinstance(e, MamaError) else BackgroundTaskFailed(f"the client ended with {e!r}")
            error.__cause__ = e if error is not e else None
            self._fail(error)
        finally:
            self._disconnect()
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
            if missed_looks(now - self._last_round):
                self.machine.postpone_silence(now - self._last_round, now)
            self._last_round = now
            self.machine.tick(now)
            self.changed.notify_all()
            if self.machine.reset:
                self.machine.reset = False
                self._connect()
            self._collect_output()
            timeout = self.machine.next_tick() - now
        self._write()
        self._poll(max(0.0, min(timeout, MAX_STEP)))
        return True

    def _collect_output(self) -> None:
        machine, box = self.machine, self._outbox
        if machine.reconnects != self._reconnects:
            # output from before OPEN is dropped; the machine repeats what it needs
            self._reconnects = machine.reconnects
            box.frames, box.at, box.size, self._queued = [], 0, 0, 0
            first = next((i for i, frames in enumerate(machine.out) if frames[0].startswith(_OPEN_COMMAND)), 0)
            del machine.out[:first]
        if box.done and machine.out:
            box.frames, box.at, box.size = list(machine.out), 0, self._queued
            machine.out, self._queued = [], 0

    def _write(self) -> None:
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
                    for frame in message[1:-1]:  # the socket accepts all parts of a message or none
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

    def _poll(self, timeout: float) -> None:
        assert self._socket is not None
        poller = zmq.Poller()
        poller.register(self._wake_receiver, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN if self._outbox.done else zmq.POLLIN | zmq.POLLOUT)
        if self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
        more = self._outbox.done and bool(self.machine.out)
        ready = dict(poller.poll(0 if more else int(timeout * 1000) + 1))
        if self._wake_receiver.fileno() in ready:
            with suppress(BlockingIOError):
                self._wake_receiver.recv(4096)
        if self._socket in ready:
            self._read()
        if self._monitor is not None and self._monitor in ready:
            self._read_monitor()

    def _read(self) -> None:
        assert self._socket is not None
        messages: list[list[bytes]] = []
        with suppress(zmq.Again):
            while len(messages) < RECEIVE_BATCH:
                messages.append(receive(self._socket, zmq.NOBLOCK))
        now = time.monotonic()
        with self.changed:
            for frames in messages:
                self.machine.receive(frames, now)
            self.changed.notify_all()

    def _read_monitor(self) -> None:
        assert self._monitor is not None
        while self._monitor is not None and self._monitor.poll(0):
            message = parse_monitor_message(self._monitor.recv_multipart())
            event = message["event"]
            if not self._handshake_failed or event not in _CONSEQUENCES:
                self._problem = _PROBLEMS[event]
            self._handshake_failed = event in _HANDSHAKE_FAILURES or (self._handshake_failed and event in _CONSEQUENCES)
            if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                if self._key_check.handshake_failed(self.endpoint, self.machine.state is ClientState.CONNECTING):
                    self._problem = "the broker has another key than curve_server_key"
                    self._fail(ConfigError(f"{self.endpoint}: {self._problem}"))
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._key_check.handshake_succeeded()
            mismatch = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and message["value"] == _MISMATCH
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or mismatch:
                self._fail(ConfigError(f"{self.endpoint}: {self._problem}"))
            elif event == zmq.EVENT_DISCONNECTED:
                with self.changed:
                    now = time.monotonic()
                    established = self.machine.state in (ClientState.CONNECTED, ClientState.TERMINATING)
                    if established or now - self._connected_at > _FLAPPING:
                        self.machine.lost(now)
                        return  # the socket will be replaced

    def _connect(self) -> None:
        """Replace the socket. The broker sees a new client, so old messages are not mixed with new ones."""
        if self._socket is not None:
            self._endpoint_index += 1
        self._disconnect()
        assert self._context is not None
        made = self._context.socket(zmq.DEALER)
        self._socket = made
        made.linger = 0
        made.set_hwm(self.settings.high_water)
        made.setsockopt(zmq.IPV6, 1)
        self._secure(made)
        self._monitor = made.get_monitor_socket(sum(_PROBLEMS))
        try:
            made.connect(self.endpoint)
        except zmq.ZMQError as e:
            raise ConfigError(f"{self.endpoint} cannot be connected to: {e}") from e
        self._connected_at = time.monotonic()
        self._handshake_failed = False

    def _secure(self, made: zmq.Socket[bytes]) -> None:
        s = self.settings
        if s.user is not None and s.password is not None:
            made.plain_username = s.user.encode()
            made.plain_password = s.password.encode()
        if s.curve_server_key is not None:
            if not zmq.has("curve"):
                raise ConfigError("this build of ZeroMQ has no CURVE")
            public, secret = zmq.curve_keypair()
            made.curve_serverkey = s.curve_server_key.encode()
            made.curve_publickey = s.curve_public_key.encode() if s.curve_public_key else public
            made.curve_secretkey = s.curve_secret_key.encode() if s.curve_secret_key else secret

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(0)
        if self._monitor is not None:
            self._monitor.close(0)
        self._socket = self._monitor = None
