"""Receiver of heartbeats and events: two ZeroMQ SUB sockets for all servers, the thread that owns them, and which
channel's heartbeats come from where."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import zmq

from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.zmq_connections import open_context

from ..events.event_codec import split
from ..idl.negotiation import EndpointPair
from .subscription_states import Connect, Disconnect

_BURST = 8000  #: most frames that are received before they are delivered
_BURST_BYTES = 16 << 20  #: bytes that are received before they are delivered
_STOP_TIMEOUT = 10.0
_SUBSCRIBER_SNDHWM = 10_000  # high-water mark of subscription messages, as in cppTango


class EventSink(Protocol):
    """Gets received messages and reports, in the receiving thread."""

    def on_events(self, messages: Sequence[Sequence[bytes]], received: int) -> None: ...

    def on_heartbeats(self, topics: set[bytes]) -> None: ...

    def on_disconnected(self, heartbeat_endpoint: str) -> None: ...

    def on_death(self, error: BaseException) -> None: ...


class ZmqEventReceiver:
    """The SUB sockets of one subscriber. :meth:`start` opens them and starts a thread, which executes commands in
    order. Above the high-water mark ``hwm`` (TG-44) ZeroMQ drops messages silently; the counters of events show it."""

    def __init__(self, sink: EventSink, *, hwm: int) -> None:
        self._sink, self.hwm = sink, hwm
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._thread: threading.Thread | None = None
        self._commands: deque[Callable[[], None]] = deque()
        self._wakeup_lock = threading.Lock()
        self._wakeup: zmq.Socket[bytes] | None = None
        self._wakeup_sent = False  # a wakeup was sent and not received yet
        self._connected: set[EndpointPair] = set()
        self._stopping = False

    def start(self) -> None:
        self._context = open_context()
        self._wakeup, wakeup_end = (self._context.socket(zmq.PAIR) for _ in range(2))
        address = f"inproc://tango-receiver-{id(self)}"
        for end in (self._wakeup, wakeup_end):
            end.setsockopt(zmq.LINGER, 0)
        wakeup_end.bind(address)
        self._wakeup.connect(address)
        self._events, self._heartbeats = self._sub_socket(), self._sub_socket()
        arguments = (wakeup_end, self._heartbeats.get_monitor_socket(zmq.EVENT_DISCONNECTED))
        self._thread = threading.Thread(target=self._run, args=arguments, name="tango-receiver", daemon=True)
        self._thread.start()

    def _sub_socket(self) -> zmq.Socket[bytes]:
        assert self._context is not None
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # ZeroMQ must not reconnect: only a new negotiation does
        socket.setsockopt(zmq.RCVHWM, self.hwm)
        socket.setsockopt(zmq.SNDHWM, _SUBSCRIBER_SNDHWM)
        socket.setsockopt(zmq.IPV6, 1)
        return socket

    # --- commands, from any thread ---

    def connect(self, pair: EndpointPair, heartbeats: tuple[str, str], hwm: int) -> None:
        """Connect anew to both endpoints, with ``hwm`` for the events, and subscribe to the heartbeats."""
        self.execute(lambda: self._connect(pair, heartbeats, hwm))

    def disconnect(self, pair: EndpointPair, heartbeats: tuple[str, str]) -> None:
        self.execute(lambda: self._disconnect(pair, heartbeats))

    def subscribe(self, topic: bytes) -> None:
        self.execute(lambda: self._events.setsockopt(zmq.SUBSCRIBE, topic))

    def unsubscribe(self, topic: bytes) -> None:
        self.execute(lambda: self._events.setsockopt(zmq.UNSUBSCRIBE, topic))

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until all commands so far were executed; False: they were not."""
        done = threading.Event()
        self.execute(done.set)
        return done.wait(timeout)

    def execute(self, command: Callable[[], None]) -> None:
        """Call a function in the receiving thread, between two messages. If it raises, the subscriber fails."""
        self._commands.append(command)
        with self._wakeup_lock:
            if self._wakeup is not None and not self._wakeup_sent:
                self._wakeup_sent = True
                with contextlib.suppress(zmq.Again):  # the thread has ended: it failed, or executed the command to stop
                    self._wakeup.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Stop the thread and close the sockets. May be called twice, and before :meth:`start`.

        :raises Unavailable: the thread did not end in time
        """
        if self._thread is None:
            return
        self.execute(self._stop)
        self._thread.join(_STOP_TIMEOUT)
        if self._thread.is_alive():
            raise Unavailable(f"the thread that receives Tango events did not end within {_STOP_TIMEOUT:g} s")
        with self._wakeup_lock:
            if self._wakeup is not None:
                self._wakeup.close()
            self._wakeup = None
        assert self._context is not None
        self._context.term()
        self._thread = None

    # --- in the receiving thread ---

    def _run(self, wakeup: zmq.Socket[bytes], disconnections: zmq.Socket[bytes]) -> None:
        failure: BaseException | None = None
        try:
            self._poll_sockets(wakeup, disconnections)
        except Exception as error:  # noqa: BLE001 - raised by the subscriber to every waiting caller
            failure = error
        self._heartbeats.disable_monitor()
        for socket in (wakeup, disconnections, self._events, self._heartbeats):
            socket.close()
        if failure is not None:
            self._sink.on_death(failure)

    def _poll_sockets(self, wakeup: zmq.Socket[bytes], disconnections: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        for socket in (wakeup, disconnections, self._heartbeats, self._events):
            poller.register(socket, zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll())
            # Receive before commands may disconnect: poll() takes the first frame of a message out of its pipe, and
            # libzmq aborts the process if the other frames are lost with the connection.
            if self._heartbeats in ready:
                found = _receive_messages(self._heartbeats)
                self._sink.on_heartbeats({frames[0] for frames in found if len(frames) == 3})
            if self._events in ready:
                # Time of day: stamps events.
                self._sink.on_events(split(_receive_frames(self._events)), time.time_ns())
            if disconnections in ready:
                for _, endpoint in _receive_messages(disconnections):
                    self._sink.on_disconnected(endpoint.decode("latin-1"))
            if wakeup in ready:
                wakeup.recv()
                with self._wakeup_lock:
                    self._wakeup_sent = False
            while self._commands:
                self._commands.popleft()()

    def _stop(self) -> None:
        self._stopping = True

    def _connect(self, pair: EndpointPair, heartbeats: tuple[str, str], hwm: int) -> None:
        self._disconnect(pair, heartbeats)
        for topic in heartbeats:
            self._heartbeats.setsockopt(zmq.SUBSCRIBE, topic.encode("latin-1"))
        self._events.setsockopt(zmq.RCVHWM, hwm)  # applies to new connections
        for socket, endpoint in ((self._heartbeats, pair.heartbeat), (self._events, pair.event)):
            with contextlib.suppress(zmq.ZMQError):  # heartbeats will be missing, which the keep-alive thread reports
                socket.connect(endpoint)
        self._connected.add(pair)

    def _disconnect(self, pair: EndpointPair, heartbeats: tuple[str, str]) -> None:
        if pair not in self._connected:
            return
        self._connected.discard(pair)
        for topic in heartbeats:
            self._heartbeats.setsockopt(zmq.UNSUBSCRIBE, topic.encode("latin-1"))
        for socket, endpoint in ((self._heartbeats, pair.heartbeat), (self._events, pair.event)):
            with contextlib.suppress(zmq.ZMQError):  # libzmq may have removed the endpoint already
                socket.disconnect(endpoint)


def _receive_frames(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The frames of all waiting messages, up to a burst. RCVMORE is only read at the end, since that takes several
    times as long as receiving a frame."""
    frames: list[bytes] = []
    receive, flags, burst_bytes = socket.recv, int(zmq.NOBLOCK), 0
    with contextlib.suppress(zmq.Again):
        while len(frames) < _BURST and burst_bytes < _BURST_BYTES:
            frame = receive(flags)
            burst_bytes += len(frame)
            frames.append(frame)
        while socket.getsockopt(zmq.RCVMORE):
            frames.append(receive(flags))
    return frames


def _receive_messages(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    """Receive all waiting messages of a socket that receives few."""
    found: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while len(found) < _BURST:
            found.append(socket.recv_multipart(zmq.NOBLOCK))
    return found


_HWM_VARIABLE, _DEFAULT_HWM = "TANGO_EVENT_BUFFER_HWM", 1000
#: Seconds until a subscription message has reached the publisher, on a new and on an existing ZeroMQ connection.
_SETTLE_NEW, _SETTLE = 0.02, 0.001


class ChannelConnections:
    """The channel of each heartbeat, and the sizes of the queues. Not thread-safe.

    :param hwm: high-water mark; None: of the environment, or what the server sends
    :ivar hwm: high-water mark of the newest connection
    :ivar reconnects: number of times that a channel was connected again
    """

    def __init__(self, hwm: int | None) -> None:
        self._configured_hwm, self.hwm = hwm, hwm or _DEFAULT_HWM
        self.reconnects = 0
        self._channels: dict[bytes, str] = {}  # heartbeat topic -> channel
        self._endpoints: dict[str, str] = {}  # channel -> endpoint of its heartbeats
        self._newest = 0.0

    def connect(self, receiver: ZmqEventReceiver, action: Connect, now: float) -> None:
        self.reconnects += action.again
        self._endpoints[action.channel] = action.pair.heartbeat
        for topic in action.heartbeats:
            self._channels[topic.encode("latin-1")] = action.channel
        variable = os.environ.get(_HWM_VARIABLE, "")
        self.hwm = self._configured_hwm or int(variable if variable.isdecimal() else 0) or max(action.hwm, 1)
        self._newest = now
        receiver.connect(action.pair, action.heartbeats, self.hwm)

    def disconnect(self, receiver: ZmqEventReceiver, action: Disconnect) -> None:
        for topic in action.heartbeats:
            self._channels.pop(topic.encode("latin-1"), None)
        self._endpoints.pop(action.channel, None)
        receiver.disconnect(action.pair, action.heartbeats)

    def settled_at(self, now: float) -> float:
        """Time at which the publishers know what was subscribed until ``now``."""
        return max(self._newest + _SETTLE_NEW, now + _SETTLE)

    def with_heartbeats(self, topics: Iterable[bytes]) -> set[str]:
        return {self._channels[topic] for topic in topics if topic in self._channels}

    def at(self, heartbeat_endpoint: str) -> list[str]:
        return [channel for channel, endpoint in self._endpoints.items() if endpoint == heartbeat_endpoint]
