"""The ROUTER socket of all clients: reads a limited amount per round, and retries blocked clients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import zmq

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.malamute.zmq_fd_poller import readable, receive
from mama_spark.options.urls import is_port

from ..configuration import BrokerSettings
from ..session.clients import ClientSession, Frames
from ..session.state_machine import ServerMachine
from .security import ZapHandler

#: Of a round: so large that a batch is worth a wake-up of its engine, so small that others wait milliseconds.
ROUND_MESSAGES = 200
ROUND_BYTES = 1024 * 1024
#: Messages sent to one client before others have their turn, and to all that were blocked in one round.
CLIENT_TURN = 1000
RETRY_TURN = 2000
#: Seconds until a blocked client is retried, at first and at most.
RETRY_INTERVAL, MAX_RETRY_INTERVAL = 0.001, 0.005
#: TCP keep-alive detects hosts that failed without closing the connection: after a minute of silence and six probes.
_KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 60, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 6}
_MORE, _MORE_NOW = zmq.SNDMORE, zmq.SNDMORE | zmq.NOBLOCK


@dataclass(slots=True)
class SocketCounters:
    received_messages: int = 0
    received_bytes: int = 0
    sent_messages: int = 0
    sent_bytes: int = 0
    lost_events: int = 0
    refused_logins: int = 0


class ClientRouter:
    """The socket, and the clients that are ``blocked``: it accepts no more for them, or there is more than a turn; the
    next one first. ``input_pending``: there may be more to read, although the socket's descriptor does not signal
    it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        settings: BrokerSettings,
        machine: ServerMachine,
        counters: SocketCounters,
    ) -> None:
        self.machine = machine
        self.counters = counters
        self.blocked: dict[ClientSession, None] = {}
        self.retry_interval = RETRY_INTERVAL
        self.input_pending = True
        self._endpoints = settings.endpoints
        self._has_sent = False  # since the last check of input: the descriptor may then not signal input
        self.socket = context.socket(zmq.ROUTER)
        self._send_frame = super(zmq.Socket, self.socket).send  # the method below Socket.send, twice as fast
        self.socket.set_hwm(settings.high_water)
        self.socket.linger = 0  # otherwise unread messages of a failed client would keep its pipe full
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message)
        for option, value in _KEEPALIVE.items():
            self.socket.setsockopt(option, value)

    def bind(self, zap_handler: ZapHandler) -> tuple[str, ...]:
        zap_handler.secure(self.socket)
        return tuple(map(self._bind, self._endpoints))

    def _bind(self, endpoint: str) -> str:
        port = endpoint.rpartition(":")[2]
        if not endpoint.startswith("ipc:") and port != "*" and not is_port(port):
            raise ConfigError(f"cannot bind {endpoint}: its port must be a number from 0 to 65535, or *")
        self.socket.setsockopt(zmq.IPV6, "[" in endpoint)  # with it, `*` would be IPv6 only on some systems
        try:
            self.socket.bind(endpoint.replace("mlp://", "tcp://", 1))
        except zmq.ZMQError as e:
            raise Unavailable(f"cannot bind {endpoint}: {e}") from e
        return self.socket.get_string(zmq.LAST_ENDPOINT)

    def read_round(self, now: float) -> None:
        """Pass frames of clients to the machine, up to the limits of a round."""
        machine, publishing, recv = self.machine, self.machine.publishing, self.socket.recv
        received_bytes = messages = 0
        publishing.unpacked = 0
        self.input_pending = False
        while not self.input_pending:
            try:
                identity = recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            frames = receive(self.socket)  # a ROUTER adds the routing id, so there are at least two frames
            machine.receive(identity, frames, now)
            received_bytes += sum(map(len, frames))
            messages += 1
            if messages == 1 and not readable(self.socket):
                break
            self.input_pending = messages + publishing.unpacked >= ROUND_MESSAGES or received_bytes > ROUND_BYTES
        self.counters.received_messages += messages + publishing.unpacked
        self.counters.received_bytes += received_bytes

    def send_output(self) -> None:
        machine = self.machine
        while out := machine.clients.take_output():
            turns = Counter[ClientSession]() if len(out) > CLIENT_TURN else None
            for client, frames in out:
                if isinstance(client, bytes):
                    self._send(client, frames)
                elif (self._must_wait(client, turns) or not self._send(client.identity, frames)) and client.connected:
                    machine.clients.block(client, frames)
                    self.blocked[client] = None

    @staticmethod
    def _must_wait(client: ClientSession, turns: Counter[ClientSession] | None) -> bool:
        if turns is None or client.blocked:
            return client.blocked
        turns[client] += 1
        return turns[client] > CLIENT_TURN and client.connected

    def retry_blocked(self) -> None:
        """Each for a turn. The interval stays short while one accepts frames: a fast reader is only briefly blocked."""
        self.retry_interval = min(self.retry_interval + RETRY_INTERVAL, MAX_RETRY_INTERVAL)
        left = RETRY_TURN
        for client in list(self.blocked):
            if left <= 0:
                return
            sent = self._retry(client)
            left -= sent
            if sent:
                self.retry_interval = RETRY_INTERVAL

    def _retry(self, client: ClientSession) -> int:
        machine = self.machine
        del self.blocked[client]
        for sent in range(CLIENT_TURN):
            frames = machine.deliveries.next_for(client) if client.connected else None
            if frames is None:
                machine.unblock(client)
                return sent
            if not self._send(client.identity, frames):
                machine.clients.put_back(client, frames)
                self.blocked[client] = None
                return sent
        self.blocked[client] = None
        return CLIENT_TURN

    def check_input(self) -> None:
        """Check after sending whether input arrived meanwhile (``ZMQ_FD`` is edge-triggered)."""
        if self._has_sent:
            self._has_sent = False
            self.input_pending = self.input_pending or readable(self.socket)

    def close(self, linger: float = 0.0) -> None:
        """Close the socket; ``linger``: seconds to send frames that it has accepted."""
        self.socket.close(int(linger * 1000))

    def _send(self, identity: bytes, frames: Frames) -> bool:
        """True if the socket accepted the message, or the peer of this identity is not connected any more."""
        send = self._send_frame
        self._has_sent = True
        try:
            send(identity, _MORE_NOW)
        except zmq.Again:
            return False
        except zmq.ZMQError as e:
            if e.errno != zmq.EHOSTUNREACH:
                raise
            return True
        self.counters.sent_messages += 1
        self.counters.sent_bytes += sum(map(len, frames))
        for frame in frames[:-1]:  # if the socket accepts the first part, it accepts all
            send(frame, _MORE)
        send(frames[-1])
        return True
