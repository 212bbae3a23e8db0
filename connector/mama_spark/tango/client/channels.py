"""The sockets of a subscriber: one SUB for all heartbeats, one for all events, and the thread that owns them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq

from mama_spark.errors import Unavailable

from ..events.frames import split
from ..idl.negotiation import EndpointPair

_BURST = 8000  #: frames that are received before they are handed on
_BURST_OCTETS = 16 << 20  #: and octets
_STOP_TIMEOUT = 10.0
_SUBSCRIBER_SNDHWM = 10_000  # subscriptions under way to servers; Tango's own value


class Receiver(Protocol):
    """Who is told, in the thread of the sockets."""

    def on_events(self, messages: Sequence[Sequence[bytes]], received: int) -> None: ...

    def on_heartbeats(self, topics: set[bytes]) -> None: ...

    def on_lost(self, heartbeat: str) -> None: ...

    def on_death(self, error: BaseException) -> None: ...


class ZmqEventReceiver:
    """Opened by :meth:`start`. What it is asked to do is done in order, by its thread.

    :param hwm: high-water mark of messages that wait in here (TG-44); behind it they are dropped silently by ZeroMQ,
        which their counters show
    """

    def __init__(self, receiver: Receiver, *, hwm: int) -> None:
        self._receiver, self.hwm = receiver, hwm
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._thread: threading.Thread | None = None
        self._orders: deque[Callable[[], None]] = deque()
        self._waking = threading.Lock()
        self._wake: zmq.Socket[bytes] | None = None
        self._woken = False  # somebody has sent a message, and it was not seen yet
        self._connected: set[EndpointPair] = set()
        self._stopping = False

    def start(self) -> None:
        self._context = zmq.Context()
        self._wake, woken = (self._context.socket(zmq.PAIR) for _ in range(2))
        address = f"inproc://channels-{id(self)}"
        for end in (self._wake, woken):
            end.setsockopt(zmq.LINGER, 0)
        woken.bind(address)
        self._wake.connect(address)
        self._events, self._heartbeats = self._sub(), self._sub()
        arguments = (woken, self._heartbeats.get_monitor_socket(zmq.EVENT_DISCONNECTED))
        self._thread = threading.Thread(target=self._run, args=arguments, name="tango-receiver", daemon=True)
        self._thread.start()

    def _sub(self) -> zmq.Socket[bytes]:
        assert self._context is not None
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # a connection is made anew after a new negotiation only
        socket.setsockopt(zmq.RCVHWM, self.hwm)
        socket.setsockopt(zmq.SNDHWM, _SUBSCRIBER_SNDHWM)
        socket.setsockopt(zmq.IPV6, 1)
        return socket

    # --- what others ask for, from any thread ---

    def connect(self, pair: EndpointPair, heartbeats: tuple[str, str], hwm: int) -> None:
        """To both endpoints; where a connection is, it is ended first."""
        self._order(lambda: self._connect(pair, heartbeats, hwm))

    def disconnect(self, pair: EndpointPair, heartbeats: tuple[str, str]) -> None:
        self._order(lambda: self._disconnect(pair, heartbeats))

    def listen(self, topic: bytes) -> None:
        self._order(lambda: self._events.setsockopt(zmq.SUBSCRIBE, topic))

    def unlisten(self, topic: bytes) -> None:
        self._order(lambda: self._events.setsockopt(zmq.UNSUBSCRIBE, topic))

    def wait(self, timeout: float) -> bool:
        """Whether all that was asked for has been done."""
        done = threading.Event()
        self._order(done.set)
        return done.wait(timeout)

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        with self._waking:
            if self._wake is not None and not self._woken:
                self._woken = True
                self._wake.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Harmless when it is closed or was never started.

        :raises Unavailable: the thread does not end
        """
        if self._thread is None:
            return
        self._stopping = True
        self._order(lambda: None)
        self._thread.join(_STOP_TIMEOUT)
        if self._thread.is_alive():
            raise Unavailable("the receiver of Tango events does not end")
        with self._waking:
            if self._wake is not None:
                self._wake.close()
            self._wake = None
        assert self._context is not None
        self._context.term()
        self._thread = None

    # --- in the thread ---

    def _run(self, woken: zmq.Socket[bytes], ended: zmq.Socket[bytes]) -> None:
        death: BaseException | None = None
        try:
            self._serve(woken, ended)
        except Exception as error:  # noqa: BLE001 - told to everybody who waits
            death = error
        self._heartbeats.disable_monitor()
        for socket in (woken, ended, self._events, self._heartbeats):
            socket.close()
        if death is not None:
            self._receiver.on_death(death)

    def _serve(self, woken: zmq.Socket[bytes], ended: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        for socket in (woken, ended, self._heartbeats, self._events):
            poller.register(socket, zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll())
            # before anything is disconnected: poll has taken the first frame of a message out of its connection, and
            # libzmq aborts the process if the rest goes away with the connection
            if self._heartbeats in ready:
                found = _messages(self._heartbeats)
                self._receiver.on_heartbeats({frames[0] for frames in found if len(frames) == 3})
            if self._events in ready:
                self._receiver.on_events(split(_drain(self._events)), time.time_ns())
            if ended in ready:
                for _, endpoint in _messages(ended):
                    self._receiver.on_lost(endpoint.decode("latin-1"))
            if woken in ready:
                woken.recv()
                with self._waking:
                    self._woken = False
            while self._orders:
                self._orders.popleft()()

    def _connect(self, pair: EndpointPair, heartbeats: tuple[str, str], hwm: int) -> None:
        self._disconnect(pair, heartbeats)
        for topic in heartbeats:
            self._heartbeats.setsockopt(zmq.SUBSCRIBE, topic.encode("latin-1"))
        self._events.setsockopt(zmq.RCVHWM, hwm)  # of connections from now on
        for socket, endpoint in ((self._heartbeats, pair.heartbeat), (self._events, pair.event)):
            with contextlib.suppress(zmq.ZMQError):  # what cannot be connected to sends no heartbeats: that is told
                socket.connect(endpoint)
        self._connected.add(pair)

    def _disconnect(self, pair: EndpointPair, heartbeats: tuple[str, str]) -> None:
        if pair not in self._connected:
            return
        self._connected.discard(pair)
        for topic in heartbeats:
            self._heartbeats.setsockopt(zmq.UNSUBSCRIBE, topic.encode("latin-1"))
        for socket, endpoint in ((self._heartbeats, pair.heartbeat), (self._events, pair.event)):
            with contextlib.suppress(zmq.ZMQError):  # libzmq may have forgotten it by itself
                socket.disconnect(endpoint)


def _drain(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The frames of what has come, up to a burst. Whether more belong to a message is asked at its end only: that costs
    several times what a frame costs."""
    frames: list[bytes] = []
    receive, flags, octets = socket.recv, int(zmq.NOBLOCK), 0
    with contextlib.suppress(zmq.Again):
        while len(frames) < _BURST and octets < _BURST_OCTETS:
            frame = receive(flags)
            octets += len(frame)
            frames.append(frame)
        while socket.getsockopt(zmq.RCVMORE):
            frames.append(receive(flags))
    return frames


def _messages(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    """What has come, where that is little."""
    found: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while len(found) < _BURST:
            found.append(socket.recv_multipart(zmq.NOBLOCK))
    return found
