"""The ROUTER socket of all clients: reads a limited amount a round, and tries blocked clients again."""

from __future__ import annotations

import zmq

from mama_spark.malamute.zmq_fd_poller import readable, receive

from ..session.client_session import ClientSession, Frames
from ..session.state_machine import ServerMachine
from .security import ZapHandler
from .settings import BrokerSettings
from .traffic_counters import TrafficCounters

#: One round reads at most this much from clients: enough that a batch is worth its wake-up, little enough that the
#: answers to the others do not wait for it.
ROUND_MESSAGES = 500
ROUND_OCTETS = 1024 * 1024
#: Milliseconds until a client whose socket took no more is tried again, at most.
MAX_RETRY_INTERVAL = 5
#: A host that vanished says nothing, and nothing is sent to a client that expired: TCP itself has to find out, after a
#: minute of silence and six probes.
_KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 60, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 6}
_MORE, _MORE_NOW = zmq.SNDMORE, zmq.SNDMORE | zmq.NOBLOCK


class ClientRouter:
    """:ivar blocked: clients whose socket took no more
    :ivar retry_interval: milliseconds until they are tried again
    :ivar input_pending: there may be more to read, and the socket's descriptor does not say so
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        settings: BrokerSettings,
        machine: ServerMachine,
        counters: TrafficCounters,
    ) -> None:
        self.machine = machine
        self.counters = counters
        self.blocked: dict[ClientSession, None] = {}
        self.retry_interval = 1
        self.input_pending = True
        self._endpoint = settings.bind
        self._has_sent = False  # since the socket was last looked at: its descriptor then does not report input
        self.socket = context.socket(zmq.ROUTER)
        self._send_frame = super(zmq.Socket, self.socket).send  # what Socket.send wraps, in half of its time
        self.socket.set_hwm(settings.high_water)
        self.socket.linger = 0  # else what a vanished client did not read stays in here, and its pipe full
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message)
        for option, value in _KEEPALIVE.items():
            self.socket.setsockopt(option, value)

    def bind(self, zap_handler: ZapHandler) -> str:
        """The endpoint that it is bound to."""
        zap_handler.secure(self.socket)
        self.socket.bind(self._endpoint.replace("mlp://", "tcp://", 1))
        return self.socket.get_string(zmq.LAST_ENDPOINT)

    def read_round(self, now: float) -> None:
        """Give the machine what clients have sent, up to the limits of a round."""
        machine, publishing, recv = self.machine, self.machine.publishing, self.socket.recv
        octets = messages = 0
        publishing.unpacked = 0
        self.input_pending = False
        while not self.input_pending:
            try:
                identity = recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            frames = receive(self.socket)  # a ROUTER never gives less
            machine.receive(identity, frames, now)
            octets += sum(map(len, frames))
            messages += 1
            if messages == 1 and not readable(self.socket):
                break
            self.input_pending = messages + publishing.unpacked >= ROUND_MESSAGES or octets > ROUND_OCTETS
        self.counters.received_messages += messages + publishing.unpacked
        self.counters.received_octets += octets

    def send_output(self) -> None:
        """Send what the machine has for clients."""
        machine = self.machine
        while out := machine.take_output():
            for client, frames in out:
                if isinstance(client, bytes):
                    self._send(client, frames)
                elif (client.blocked or not self._send(client.identity, frames)) and client.connected:
                    machine.output.block(client, frames)
                    self.blocked[client] = None

    def retry_blocked(self) -> None:
        """Try blocked clients again; soon again while one of them takes something, for a fast reader is blocked again
        and again."""
        machine = self.machine
        self.retry_interval = min(self.retry_interval + 1, MAX_RETRY_INTERVAL)
        for client in list(self.blocked):
            while client.connected and (frames := machine.deliveries.next_for(client)) is not None:
                if not self._send(client.identity, frames):
                    machine.output.put_back(client, frames)
                    break
                self.retry_interval = 1
            else:
                del self.blocked[client]
                machine.unblock(client)

    def check_input(self) -> None:
        """After sending: has something come meanwhile?"""
        if self._has_sent:
            self._has_sent = False
            self.input_pending = self.input_pending or readable(self.socket)

    def close(self, linger: float = 0.0) -> None:
        """:param linger: seconds to send what the socket has taken"""
        self.socket.close(int(linger * 1000))

    def _send(self, identity: bytes, frames: Frames) -> bool:
        """True if the socket took it, or never will: nobody of this identity is connected any more."""
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
        self.counters.sent_octets += sum(map(len, frames))
        for frame in frames[:-1]:  # a message of which the socket took the first part fits whole
            send(frame, _MORE)
        send(frames[-1])
        return True
