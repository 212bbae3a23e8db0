"""The sockets of a peer: XPUB sends, SUB receives, and with naming a SUB and a PUB for announcements.

One thread calls a peer at a time; nothing happens between its calls, so :meth:`OpenMamaPeer.poll` must be called every
second or so: it also announces the peer. Data and naming have a context each, because a context's end is the only sign
that everything is written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

import zmq

from mama_spark.errors import ConfigError, PublishError, Unavailable
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.zmq_context import open_context

from ..protocol.frames import BridgeFrame, FrameType, payload_fault, why_unsendable
from ..protocol.naming import CONNECT, NAMING_TOPIC, NamingFrame
from .inboxes import OpenInboxes, PendingReplies, is_inbox
from .naming_client import (
    Announce,
    ConnectReceiver,
    ConnectSender,
    DisconnectReceiver,
    DisconnectSender,
    NamingAction,
    NamingClient,
    PeerChange,
)
from .settings import Endpoint, PeerSettings
from .subscription_table import SubscriptionChange, SubscriptionTable

logger = logging.getLogger("mama_spark")

PAUSE = 0.2  #: seconds between the last octet of data and ``D``: real receivers drop what they have not read by then
MAX_FRAME = 64 << 20  #: octets; whoever sends more is disconnected
MAX_SUBSCRIPTION = 1 << 16  #: octets of a message that readers send
_RECONNECT = (100, 1000)  #: milliseconds, first and most
_MOST = 4096  #: messages of one :meth:`OpenMamaPeer.poll`

Socket = zmq.Socket[bytes]


class JoinTimeout(Unavailable):
    """No name server answered in time."""


class ReceivedFrame(NamedTuple):
    """A message that this peer subscribed to, or a reply.

    :ivar raw: its octets as they came
    :ivar inbox: number of the request that it replies to
    """

    frame: BridgeFrame
    raw: bytes
    inbox: int | None = None


@dataclass(slots=True)
class PeerInput:
    """What came since the last poll, each list in order of arrival."""

    frames: list[ReceivedFrame] = field(default_factory=list)
    subscriptions: list[SubscriptionChange] = field(default_factory=list)
    peers: list[PeerChange] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.frames or self.subscriptions or self.peers)


@dataclass(slots=True)
class PeerCounters:
    """Since the peer was made.

    :ivar malformed: received messages that are no frame of the framing; ``multipart``: of several ZeroMQ frames
    :ivar neighbours: of topics that only begin like one that was subscribed to
    :ivar unknown_inbox: replies to requests that are not known or finished
    :ivar foreign_payload: of another payload library than OMNM; they are delivered
    :ivar bad_endpoints: that another peer announced and no socket takes
    """

    sent: int = 0
    received: int = 0
    malformed: int = 0
    multipart: int = 0
    neighbours: int = 0
    unknown_inbox: int = 0
    foreign_payload: int = 0
    bad_endpoints: int = 0


class OpenMamaPeer:
    """Made closed; :meth:`open` connects it.

    :param clock: monotonic seconds
    :ivar readers: who subscribes here
    :ivar naming: None in direct mode
    :ivar endpoint: where others connect to the sending socket, where that is known
    """

    def __init__(self, settings: PeerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self._clock = settings, clock
        self.uuid = str(uuid.uuid4())
        self.readers = SubscriptionTable()
        self.counters = PeerCounters()
        self.naming: NamingClient | None = None
        self.endpoint = ""
        self._inboxes = OpenInboxes(settings.framing, self.uuid)
        self._replies = PendingReplies()
        self._topics: set[str] = set()
        self._prefixes: tuple[str, ...] = ()
        self._warned: set[str] = set()
        self._contexts: list[zmq.Context[Socket]] = []
        self._out: Socket | None = None
        self._in: Socket | None = None
        self._naming_in: Socket | None = None
        self._naming_out: Socket | None = None
        self._poller = zmq.Poller()

    def __repr__(self) -> str:
        state = "closed" if self._out is None else self.endpoint or "open"
        return f"<OpenMamaPeer {self.settings.framing.name} {state}, {len(self.readers)} prefixes wanted>"

    # --- life ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the sockets, and with naming wait until the network knows this peer.

        :raises JoinTimeout: no name server answered within ``join_timeout``; names its address
        :raises Unavailable: an address is in use, or too few file descriptors are left
        :raises ConfigError: an address cannot be used
        """
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        s = self.settings
        data = self._context()
        self._out = self._socket(data, zmq.XPUB, MAX_SUBSCRIPTION)
        self._out.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._out.setsockopt(zmq.XPUB_NODROP, 1)
        self._out.setsockopt(zmq.LINGER, round(s.linger * 1000))
        if s.heartbeat is not None:
            self._out.setsockopt(zmq.HEARTBEAT_IVL, round(s.heartbeat * 500))
            self._out.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(s.heartbeat * 500))
        self._poller.register(self._out, zmq.POLLIN)
        if s.receive:
            self._in = self._socket(data, zmq.SUB, MAX_FRAME)
            self._poller.register(self._in, zmq.POLLIN)
            if s.framing.name == "oz":
                self._in.subscribe(self._inboxes.subscription("").encode())
        if s.naming:
            self._join()
        else:
            self._attach(self._out, s.outgoing)
            if self._in is not None:
                self._attach(self._in, s.incoming)

    def _join(self) -> None:
        s = self.settings
        assert self._out is not None
        host = s.publish_address or _address_towards(s.naming[0])
        self._attach(self._out, (Endpoint(f"tcp://{host}:*", True),))
        me = NamingFrame(CONNECT, s.program[:256], socket.gethostname()[:64], os.getpid(), self.uuid, self.endpoint)
        self.naming = NamingClient(me, len(s.naming))
        context = self._context()
        self._naming_in = self._socket(context, zmq.SUB, MAX_SUBSCRIPTION)
        self._naming_out = self._socket(context, zmq.PUB, MAX_SUBSCRIPTION)
        self._naming_in.subscribe(NAMING_TOPIC.encode())
        self._poller.register(self._naming_in, zmq.POLLIN)
        self._attach(self._naming_in, [Endpoint(address) for address in s.naming])
        until = self._clock() + s.join_timeout
        while not self.naming.joined:
            if self._clock() >= until:
                where = " and ".join(s.naming)
                raise JoinTimeout(
                    f"no name server answered at {where} within {s.join_timeout:g} s: is one running there? "
                    "(nsd -i ADDRESS -p PORT, or mama nsd)"
                )
            self._wait(0.05)
            self._serve_naming()

    def close(self) -> None:
        """End in order: what was sent is written (``linger`` at most), a pause, ``D``. May be repeated."""
        if not self._contexts:
            return
        waited = self._close_data()
        if waited >= self.settings.linger > 0:
            logger.error("%r: not everything was written within %g s: a reader takes nothing, and what waited for it "
                         "is lost", self, self.settings.linger)  # fmt: skip
        if self.naming is not None and self._naming_out is not None:
            if self.counters.sent:
                time.sleep(PAUSE)
            for action in self.naming.leave():
                self._act(action, None)
            self._naming_out.close(linger=1000)
        if self._naming_in is not None:
            self._naming_in.close(linger=0)
        for context in self._contexts:
            context.term()
        self._contexts.clear()
        self._naming_in = self._naming_out = None
        self._poller = zmq.Poller()

    def _close_data(self) -> float:
        """How long it took until everything was written."""
        if self._in is not None:
            self._in.close(linger=0)
        if self._out is not None:
            self._out.close()
        began = self._clock()
        self._contexts.pop(0).term()
        self._in = self._out = None
        return self._clock() - began

    # --- sending ---------------------------------------------------------------------------------------------

    def wanted(self, topic: str) -> bool:
        """Whether some connected reader subscribed to this topic, or to a prefix of it."""
        return self.readers.wanted(topic.encode())

    def send(self, data: bytes) -> bool:
        """Send the octets of a frame; False: a reader's queue is full, and nothing was sent to anybody."""
        return self.send_many((data,)) == 1

    def send_many(self, frames: Sequence[bytes]) -> int:
        """Send frames in order until a reader's queue is full; how many were sent."""
        send, n = self._sender().send, 0
        try:
            for data in frames:
                send(data, zmq.DONTWAIT)
                n += 1
        except zmq.Again:
            pass
        self.counters.sent += n
        return n

    def publish(self, topic: str, payload: bytes) -> bool:
        """Publish a message; as :meth:`send`.

        :raises PublishError: nothing can be sent to this topic
        """
        _check_topic(topic)
        return self.send(self.settings.framing.publish_head(topic) + payload)

    def request(self, topic: str, payload: bytes) -> int:
        """Send a request and open an inbox for the replies, until :meth:`forget`; the inbox's number.

        A request that is sent before its receiver's subscription arrived is lost without trace: see :meth:`wanted`.

        :raises ConfigError: this peer receives nothing, or the receivers of its network end with a fault at a request
        :raises PublishError: nothing can be sent to this topic
        :raises Unavailable: a reader's queue is full
        """
        self.check_requests()
        assert self._in is not None
        _check_topic(topic)
        number, inbox = self._inboxes.open()
        if self.settings.framing.name != "oz":
            self._in.subscribe(inbox.encode() + b"\0")
        if not self.send(self.settings.framing.encode(BridgeFrame(FrameType.REQUEST, topic, payload, inbox))):
            self.forget(number)
            raise Unavailable("a reader takes nothing, so that no request can be sent")
        return number

    def check_requests(self) -> None:
        """:raises ConfigError: as :meth:`request`"""
        if self._in is None:
            raise ConfigError("a peer without a receiving socket gets no replies: give incoming in the url")
        if not (self.settings.framing.answers_requests or self.settings.allow_requests):
            raise ConfigError(
                f"programs of the framing {self.settings.framing.name} end with a fault when they receive a request; "
                "where all of them are repaired, add allow_requests=true to the url"
            )

    def forget(self, number: int) -> None:
        """Drop further replies to this request."""
        inbox = self._inboxes.close(number)
        if inbox is not None and self._in is not None and self.settings.framing.name != "oz":
            self._in.unsubscribe(inbox.encode() + b"\0")

    def reply(self, request: BridgeFrame, payload: bytes, topic: str | None = None) -> None:
        """Answer a request; the reply waits until its inbox is subscribed to.

        :param topic: that the answer is about, which framing ``zmq`` states; None: of the request
        """
        framing = self.settings.framing
        subject = "" if framing.name == "oz" else topic or request.topic
        try:
            data = framing.encode(BridgeFrame(FrameType.REPLY, request.address, payload, subject))
        except BadMessage as e:
            raise PublishError(e.info) from None
        self._replies.add(request.address, data, self._clock())
        self._send_replies()

    def _send_replies(self) -> None:
        if len(self._replies):
            for data in self._replies.due(self.readers, self._clock()):
                if not self.send(data):
                    self._replies.dropped += 1

    def _sender(self) -> Socket:
        if self._out is None:
            raise Unavailable("the peer is closed")
        return self._out

    # --- receiving -------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, *, prefix: bool = False) -> None:
        """Receive the messages of a topic, or of all topics that begin so.

        :raises ConfigError: this peer receives nothing
        """
        if self._in is None:
            raise ConfigError("a peer without a receiving socket cannot subscribe: give incoming in the url")
        if prefix:
            self._prefixes = (*self._prefixes, topic)
        elif topic in self._topics:
            return
        else:
            self._topics.add(topic)
        self._in.subscribe(topic.encode() + (b"" if prefix else b"\0"))

    def unsubscribe(self, topic: str, *, prefix: bool = False) -> None:
        """Undo :meth:`subscribe`."""
        known = topic in (self._prefixes if prefix else self._topics)
        if self._in is None or not known:
            return
        if prefix:
            self._prefixes = tuple(p for p in self._prefixes if p != topic)
        else:
            self._topics.discard(topic)
        self._in.unsubscribe(topic.encode() + (b"" if prefix else b"\0"))

    def poll(self, timeout: float, most: int = _MOST) -> PeerInput:
        """Wait until something came, at most ``timeout`` seconds, and do what is due.

        :param most: messages that one call returns at most
        """
        came = PeerInput()
        until = self._clock() + timeout
        while True:
            self._wait(max(0.0, min(until - self._clock(), self._due_in())))
            self._read_subscriptions(came)
            self._read_frames(came, most)
            came.peers += self._serve_naming()
            self._send_replies()
            if came or self._clock() >= until:
                return came

    def _due_in(self) -> float:
        """Seconds until something must be done."""
        naming = self.naming.wake_at() - self._clock() if self.naming is not None else 60.0
        return max(0.0, min(naming, 0.05 if len(self._replies) else 60.0))

    def _wait(self, seconds: float) -> None:
        self._poller.poll(int(seconds * 1000 + 0.999))

    def _read_subscriptions(self, came: PeerInput) -> None:
        out = self._sender()
        with contextlib.suppress(zmq.Again):
            while True:
                change = self.readers.apply(out.recv(zmq.DONTWAIT))
                if change is not None:
                    came.subscriptions.append(change)

    def _read_frames(self, came: PeerInput, most: int) -> None:
        if self._in is None:
            return
        receive = self._in.recv_multipart
        with contextlib.suppress(zmq.Again):
            for _ in range(most):
                parts = receive(zmq.DONTWAIT)
                if len(parts) > 1:
                    self.counters.multipart += 1
                elif (found := self._accepted(parts[0])) is not None:
                    came.frames.append(found)

    def _accepted(self, raw: bytes) -> ReceivedFrame | None:
        """A received message, unless it is nothing for this peer."""
        counters = self.counters
        counters.received += 1
        try:
            frame = self.settings.framing.decode(raw)
        except BadMessage:
            counters.malformed += 1
            return None
        if frame.payload[:1] != b"O":
            self._foreign(frame)
        if is_inbox(frame.topic):
            number = self._inboxes.request_of(frame.topic)
            if number is None or frame.type is not FrameType.REPLY:
                counters.unknown_inbox += 1
                return None
            return ReceivedFrame(frame, raw, number)
        if frame.topic in self._topics or (self._prefixes and frame.topic.startswith(self._prefixes)):
            return ReceivedFrame(frame, raw)
        counters.neighbours += 1
        return None

    def _foreign(self, frame: BridgeFrame) -> None:
        self.counters.foreign_payload += 1
        fault = payload_fault(frame.payload) or ""
        if fault not in self._warned and len(self._warned) < 16:
            self._warned.add(fault)
            logger.warning("topic %r: %s (said once)", frame.topic, fault)

    # --- naming ----------------------------------------------------------------------------------------------

    def _serve_naming(self) -> list[PeerChange]:
        changes: list[PeerChange] = []
        if self.naming is None or self._naming_in is None:
            return changes
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST):
                for action in self.naming.received(self._naming_in.recv(zmq.DONTWAIT), self._clock()):
                    self._act(action, changes)
        for action in self.naming.tick(self._clock()):
            self._act(action, changes)
        return changes

    def _act(self, action: NamingAction, changes: list[PeerChange] | None) -> None:
        if isinstance(action, PeerChange):
            if changes is not None:
                changes.append(action)
        elif isinstance(action, Announce):
            if self._naming_out is not None:
                with contextlib.suppress(zmq.Again):
                    self._naming_out.send(action.data, zmq.DONTWAIT)
        elif isinstance(action, ConnectSender | DisconnectSender):
            self._dial(self._naming_out, action.endpoint, isinstance(action, ConnectSender))
        elif isinstance(action, ConnectReceiver | DisconnectReceiver):
            self._dial(self._in, action.endpoint, isinstance(action, ConnectReceiver))

    def _dial(self, sock: Socket | None, endpoint: str, connect: bool) -> None:
        """What others announce may be no endpoint at all."""
        if sock is None:
            return
        try:
            if connect:
                sock.connect(endpoint)
            else:
                sock.disconnect(endpoint)
        except zmq.ZMQError:
            if connect:
                self.counters.bad_endpoints += 1

    # --- sockets ---------------------------------------------------------------------------------------------

    def _context(self) -> zmq.Context[Socket]:
        self._contexts.append(open_context())
        return self._contexts[-1]

    def _socket(self, context: zmq.Context[Socket], kind: int, most: int) -> Socket:
        made = context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.MAXMSGSIZE, most)
        made.setsockopt(zmq.SNDHWM, self.settings.high_water_mark)
        made.setsockopt(zmq.RCVHWM, self.settings.high_water_mark)
        made.setsockopt(zmq.RECONNECT_IVL, _RECONNECT[0])
        made.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT[1])
        return made

    def _attach(self, sock: Socket, endpoints: Sequence[Endpoint]) -> None:
        for address, bind in endpoints:
            try:
                if bind:
                    sock.bind(address)
                else:
                    sock.connect(address)
            except zmq.ZMQError as e:
                if bind and e.errno in (zmq.EADDRINUSE, zmq.EADDRNOTAVAIL):
                    raise Unavailable(f"{address}: {e.strerror}") from e
                raise ConfigError(f"{address}: {e.strerror}") from e
            if bind and sock is self._out:
                self.endpoint = str(sock.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")


def _check_topic(topic: str) -> None:
    if (fault := why_unsendable(topic)) is not None:
        raise PublishError(fault, status="BAD_SYMBOL")


def _address_towards(endpoint: str) -> str:
    """The address of the interface by which a host is reached: where others of its network reach this one.

    :raises Unavailable: its name is not known
    """
    parts = urlsplit(endpoint)
    try:
        family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            found = str(probe.getsockname()[0])
    except OSError as e:
        raise Unavailable(f"{endpoint}: {e.strerror or e}") from e
    return f"[{found}]" if ":" in found else found
