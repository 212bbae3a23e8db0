"""The sockets of a peer: XPUB sends, SUB receives, and with naming a SUB and a PUB for announcements.

One thread calls a peer at a time; nothing happens between its calls, so :meth:`OpenMamaPeer.poll` must be called every
second or so: it also announces the peer. Data and naming have a context each, because a context's end is the only sign
that everything is written.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq

from mama_spark.contracts.errors import ConfigError, PublishError, Unavailable
from mama_spark.contracts.zmq_connections import (
    Connection,
    WrittenProbe,
    connection_of,
    end_context,
    ended,
    open_context,
)
from mama_spark.mama.messages.omnm import BadMessage

from .frame_filter import FrameColumns, FrameFilter, PeerCounters, ReceivedFrame
from .frames import INBOX_PREFIX, BridgeFrame, FrameType, why_unsendable
from .naming import CONNECT, NamingFrame
from .naming_client import NamingClient, PeerChange
from .settings import Endpoint, PeerSettings
from .sockets import MAX_FRAME, NamingSockets, Socket, address_towards, attach, make_sender, make_socket, receive_single
from .subscriptions import OpenInboxes, PendingReplies, SubscriptionChange, SubscriptionTable

PAUSE = 0.2  #: seconds between the last byte of data and ``D``: real receivers drop what they have not read by then
_MOST = 4096  #: messages of one :meth:`OpenMamaPeer.poll`


class JoinTimeout(Unavailable):
    """No name server answered in time."""


@dataclass(slots=True)
class PeerInput:
    """Messages and changes since the last poll, each list in order of arrival.

    :ivar columns: the frames of a peer that was asked for columns, instead of ``frames``
    """

    frames: list[ReceivedFrame] = field(default_factory=list)
    columns: FrameColumns = field(default_factory=FrameColumns)
    subscriptions: list[SubscriptionChange] = field(default_factory=list)
    peers: list[PeerChange] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.frames or self.columns or self.subscriptions or self.peers)


class OpenMamaPeer:
    """Made closed; :meth:`open` connects it.

    :ivar readers: subscribers of this peer
    :ivar naming: None in direct mode
    :ivar endpoint: address of the sending socket for others, if known
    """

    def __init__(self, settings: PeerSettings) -> None:
        self.settings = settings
        self.uuid = str(uuid.uuid4())
        self.readers = SubscriptionTable()
        self.counters = PeerCounters()
        self.naming: NamingClient | None = None
        self.endpoint = ""
        self._inboxes = OpenInboxes(settings.framing, self.uuid)
        self._replies = PendingReplies()
        self._filter = FrameFilter(settings.framing, self._inboxes, self.counters)
        self._context: zmq.Context[Socket] | None = None
        self._out: Socket | None = None
        self._in: Socket | None = None
        self._naming_sockets: NamingSockets | None = None
        self._poller = zmq.Poller()
        self._connections: set[Connection] = set()  # of readers
        self._probe: WrittenProbe | None = None

    def __repr__(self) -> str:
        state = "closed" if self._out is None else self.endpoint or "open"
        return f"<OpenMamaPeer {self.settings.framing.name} {state}, {len(self.readers)} prefixes wanted>"

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
        data = self._context = open_context()
        self._out = make_sender(data, s.high_water_mark, s.heartbeat)
        self._poller.register(self._out, zmq.POLLIN)
        if s.receive:
            self._in = make_socket(data, zmq.SUB, MAX_FRAME, s.high_water_mark)
            self._poller.register(self._in, zmq.POLLIN)
            if s.framing.shared_inbox:  # one subscription for all inboxes
                self._in.subscribe(f"{INBOX_PREFIX}.{self.uuid}".encode())
        if s.naming:
            self._join()
        else:
            self.endpoint = attach(self._out, s.outgoing)
            if self._in is not None:
                attach(self._in, s.incoming)

    def _join(self) -> None:
        s = self.settings
        assert self._out is not None
        host = s.publish_address or address_towards(s.naming[0])
        self.endpoint = attach(self._out, (Endpoint(f"tcp://{host}:*", True),))
        me = NamingFrame(CONNECT, s.program[:256], socket.gethostname()[:64], os.getpid(), self.uuid, self.endpoint)
        self._naming_sockets = NamingSockets(me, len(s.naming), s.high_water_mark)
        self.naming = self._naming_sockets.client
        self._poller.register(self._naming_sockets.incoming, zmq.POLLIN)
        attach(self._naming_sockets.incoming, [Endpoint(address) for address in s.naming])
        until = time.monotonic() + s.join_timeout
        while not self.naming.joined:
            if time.monotonic() >= until:
                where = " and ".join(s.naming)
                raise JoinTimeout(
                    f"no name server answered at {where} within {s.join_timeout:g} s: is one running there? "
                    "(nsd -i ADDRESS -p PORT, or mama nsd)"
                )
            self._wait(0.05)
            self._naming_sockets.serve(self._in, time.monotonic())

    def close(self, linger: float | None = None) -> bool:
        """End in order: what was sent is written, a pause, ``D``. May be repeated.

        :param linger: seconds at most until all is written; then it is dropped. None: as the settings say
        :returns: whether all was written
        """
        if self._context is None:
            return True
        if self._in is not None:
            self._in.close(linger=0)
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        sockets = () if self._out is None else (self._out,)
        written = end_context(self._context, sockets, self.settings.linger if linger is None else linger)
        self._context = self._in = self._out = None
        if self._naming_sockets is not None:
            if self.counters.sent:
                time.sleep(PAUSE)
            self._naming_sockets.close()
            self._naming_sockets = None
        self._poller = zmq.Poller()
        return written or not self.counters.sent

    def wanted(self, topic: str) -> bool:
        """Whether some connected reader subscribed to this topic, or to a prefix of it."""
        return self.readers.wanted(topic.encode())

    def all_written(self) -> bool:
        """Whether nothing that was sent waits for any reader, nor, where this peer connects, for one that is away."""
        self._connections -= ended(self._connections)
        if not self._connections or self._context is None:
            return not len(self.readers)
        if self._probe is None:
            self._probe = WrittenProbe(self._context)
        return self._probe.all_written(self._connections)

    def send(self, data: bytes) -> bool:
        """Send the bytes of a frame; False: a reader's queue is full, and nobody got them."""
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
        """Publish a message by :meth:`send`.

        :raises PublishError: nothing can be sent to this topic
        """
        _check_topic(topic)
        return self.send(self.settings.framing.publish_head(topic) + payload)

    def request(self, topic: str, payload: bytes, number: int | None = None) -> int:
        """Send a request and open an inbox for the replies, until :meth:`forget`; the inbox's number.

        A request before its receiver's subscription arrived (:meth:`wanted`), or a reply before our subscription to the
        inbox arrived, is lost without trace: ask again.

        :param number: number of the inbox of an earlier request, which gets the replies to this one, too
        :raises ConfigError: this peer receives nothing, or the receivers of its network end with a fault at a request
        :raises PublishError: nothing can be sent to this topic
        :raises Unavailable: a reader's queue is full
        """
        self.check_requests()
        assert self._in is not None
        _check_topic(topic)
        inbox = self._inboxes.topic_of(number)
        known = number is not None and inbox is not None
        if number is None or inbox is None:
            number, inbox = self._inboxes.open()
            if not self.settings.framing.shared_inbox:
                self._in.subscribe(inbox.encode() + b"\0")
        if not self.send(self.settings.framing.encode(BridgeFrame(FrameType.REQUEST, topic, payload, inbox))):
            if not known:
                self.forget(number)
            raise Unavailable("a reader takes nothing, so that no request can be sent")
        return number

    def check_requests(self) -> None:
        """Check that this peer may send requests.

        :raises ConfigError: as :meth:`request`
        """
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
        if inbox is not None and self._in is not None and not self.settings.framing.shared_inbox:
            self._in.unsubscribe(inbox.encode() + b"\0")

    def reply(self, request: BridgeFrame, payload: bytes, topic: str | None = None) -> None:
        """Answer a request; the reply waits until its inbox is subscribed to.

        :param topic: topic that the answer is about, which framing ``zmq`` states; None: of the request
        """
        framing = self.settings.framing
        subject = "" if framing.empty_address else topic or request.topic
        try:
            data = framing.encode(BridgeFrame(FrameType.REPLY, request.address, payload, subject))
        except BadMessage as e:
            raise PublishError(e.info) from None
        self._replies.add(request.address, data, time.monotonic())
        self._send_replies()

    def _send_replies(self) -> None:
        if len(self._replies):
            for data in self._replies.due(self.readers, time.monotonic()):
                self.send(data)  # or it is lost: a queue is full

    def _sender(self) -> Socket:
        if self._out is None:
            raise Unavailable("the peer is closed")
        return self._out

    def subscribe(self, topic: str, *, prefix: bool = False) -> None:
        """Receive the messages of a topic, or of all topics that begin so.

        :raises ConfigError: this peer receives nothing
        """
        if self._in is None:
            raise ConfigError("a peer without a receiving socket cannot subscribe: give incoming in the url")
        if self._filter.add(topic, prefix=prefix):
            self._in.subscribe(topic.encode() + (b"" if prefix else b"\0"))

    def unsubscribe(self, topic: str) -> None:
        if self._in is not None and self._filter.remove(topic):
            self._in.unsubscribe(topic.encode() + b"\0")

    def poll(self, timeout: float, most: int = _MOST, *, columns: bool = False) -> PeerInput:
        """Wait until something came, at most ``timeout`` seconds, and do what is due.

        :param most: messages that one call returns at most
        """
        came = PeerInput()
        until = time.monotonic() + timeout
        while True:
            self._wait(max(0.0, min(until - time.monotonic(), self._due_in())))
            self._read_subscriptions(came)
            self._read_frames(came, most, columns)
            if self._naming_sockets is not None:
                came.peers += self._naming_sockets.serve(self._in, time.monotonic())
            self._send_replies()
            if came or time.monotonic() >= until:
                return came

    def _due_in(self) -> float:
        naming = self.naming.wake_at() - time.monotonic() if self.naming is not None else 60.0
        return max(0.0, min(naming, 0.05 if len(self._replies) else 60.0))

    def _wait(self, seconds: float) -> None:
        self._poller.poll(int(seconds * 1000 + 0.999))

    def _read_subscriptions(self, came: PeerInput) -> None:
        out = self._sender()
        with contextlib.suppress(zmq.Again):
            while True:
                frame = out.recv(zmq.DONTWAIT, copy=False)
                if (connection := connection_of(frame)) is not None:
                    self._connections.add(connection)
                change = self.readers.apply(frame.bytes)
                if change is not None:
                    came.subscriptions.append(change)

    def _read_frames(self, came: PeerInput, most: int, columns: bool) -> None:
        if self._in is None:
            return
        raws, multipart = receive_single(self._in, most)
        self.counters.multipart += multipart
        if columns and raws:
            came.columns = self._filter.columns(raws)
        elif raws:
            came.frames += [found for found in map(self._filter.accepted, raws) if found is not None]


def _check_topic(topic: str) -> None:
    if (fault := why_unsendable(topic)) is not None:
        raise PublishError(fault, status="BAD_SYMBOL")
