"""The server's end of streams, whose engines run in other threads (ML-03, ML-09, ML-10), and its socket for reports.

Engines are driven a turn at a time (ML-04, ML-05, ML-08, ML-16): one in a thread of its own, or many in a few. A turn
is the start of an engine, one batch of commands, one command made of strings, or one piece of background work.

Commands and reports travel as batches of references: lists in queues in memory. Commands made of strings only (VERBOSE,
TRAFFIC, $TERM) are frames as the specification names them. Each thread has a PUSH socket, on which it announces reports
to the one PULL of the server.

Streams that have something to do stand in one queue, each at most once, and a thread takes the first of them. So the
methods of an engine are called one after another, and an engine that waits for its disk occupies one thread while the
others go on. A stream with nothing to do costs neither thread nor socket.

One lock guards :attr:`EngineHandle.active`: whoever puts the stream into the queue sets it, and only the thread that
has executed the turn clears it, if no command has come. A command is in the inbox before the lock is taken, so either
that thread sees it there, or the stream is inactive by then and the command puts it into the queue.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

import zmq

from mama_spark.malamute.zmq_fd_poller import readable

from .base import StreamEngine
from .commands import EngineCommand, Report
from .engine_actor import EngineActor

log = logging.getLogger(__name__)


def inproc_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket without high-water marks: its users limit the queued bytes."""
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    return made


class EngineHandle:
    """The server's end of one stream, whose engine runs in :class:`EngineThreads`: commands are executed in order and
    one after another. The server's thread calls its methods, but for :meth:`take_turn`.

    That it has started, its answer to the first TRAFFIC says; that it cannot, :class:`~.commands.EngineFailed`.

    :param threads: threads that run the engine; None = a thread of its own
    :ivar inbox: batches and commands made of strings that the engine has not begun
    :ivar active: it is in the queue or in a thread
    :ivar started: whether the first turn, in which the engine starts, is over
    :ivar ended: it has no more turns, after $TERM or by an error that it has reported
    :ivar due: monotonic time of its next background work; None = after the next command
    :ivar timer: earliest time at which the clock looks at it; None = it does not
    :raises zmq.ZMQError: no more sockets or files
    :raises RuntimeError: no more threads
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: bytes,
        engine: type[StreamEngine],
        settings: Mapping[str, Any] | None,
        threads: EngineThreads | None,
    ) -> None:
        self._own = None
        if threads is None:
            threads = self._own = EngineThreads(context, f"stream-{name.decode('utf-8', 'replace')}")
        self.name = name
        self.stored = engine.stored
        self.actor = EngineActor(name, engine, settings)
        self.inbox: deque[list[EngineCommand] | tuple[bytes, ...]] = deque()
        self.active = self.started = self.ended = False
        self.due: float | None = None
        self.timer: float | None = None
        self._ending = self._terminated = False
        self._threads = threads
        threads.drive(self)

    def post(self, command: list[EngineCommand] | tuple[bytes, ...]) -> None:
        """Send a batch of commands, which the caller must not use afterwards, or a command made of strings."""
        self.inbox.append(command)
        self._threads.schedule(self)

    def traffic(self, endpoint: str) -> None:
        """Set the endpoint for deliveries. Idempotent; answered by :class:`~.commands.CommandDone` each time."""
        self.post((b"TRAFFIC", endpoint.encode()))

    @property
    def closed(self) -> bool:
        """Whether the engine has ended, and its thread if it has one of its own."""
        return self.ended and (self._own is None or not self._own.running)

    def end(self) -> None:
        """Send $TERM after all commands; :meth:`destroy` frees everything when :attr:`ended`. Idempotent."""
        if not self._ending and not self.closed:
            self._ending = True
            self.post((b"$TERM",))

    def destroy(self, timeout: float = 30.0) -> None:
        """Send $TERM after all commands; returns when all is freed. Logs an error if the engine does not end in time;
        may be repeated."""
        if self.closed:
            return
        self.end()
        self._threads.wait(lambda: self.ended, timeout)
        if not self.ended:  # $TERM is on its way
            log.error("the engine of stream %r does not end", self.name)
        elif self._own is not None:
            self._own.close(timeout)

    # --- the thread of the engine --------------------------------------------------------------------------------

    def take_turn(self) -> float | None:
        """Returns seconds until the next background work; None = after the next command."""
        try:
            return self._take_turn(self.actor)
        except BaseException as e:  # noqa: BLE001 whatever an engine raises ends its stream, and nothing else
            self.actor.fail(e)
            return None

    def _take_turn(self, actor: EngineActor) -> float | None:
        if not self.started:
            actor.start()
            return None
        if not self.inbox:
            return None if actor.error else actor.work()
        command = self.inbox.popleft()
        if isinstance(command, tuple):
            if not actor.run_frames(command):
                actor.close()
                self._terminated = True
        elif not actor.error:
            actor.run_batch(command)
        return 0.0 if actor.works else None

    @property
    def over(self) -> bool:
        """Whether it has no more turns: $TERM was executed, or its failure is reported."""
        return self._terminated or (self.actor.error is not None and self.actor.endpoint is not None)


class EngineThreads:
    """At most ``most`` threads, started when they are needed; 0 = the one engine has a thread of its own, which ends
    with it. TRAFFIC names the same endpoint to all streams."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str, most: int = 0) -> None:
        self._context = context
        self._name = name
        self._own, self._most = not most, max(most, 1)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # a stream has started or ended
        self._timed = threading.Condition(self._lock)  # there is an earlier timer
        self._queue: SimpleQueue[EngineHandle | None] = SimpleQueue()  # None = the thread is to end
        self._active = 0  # streams in the queue or in a thread
        self._threads: list[threading.Thread] = []
        self._timers: list[tuple[float, int, EngineHandle]] = []
        self._numbers = count()
        self._clock: threading.Thread | None = None
        self._closing = False

    # --- for streams ---------------------------------------------------------------------------------------------

    def drive(self, stream: EngineHandle) -> None:
        """Start the engine in one of the threads.

        :raises RuntimeError: the system allows no thread at all
        :raises zmq.ZMQError: no socket at all
        """
        if stream.actor.works and self._clock is None and not self._own:
            clock = threading.Thread(target=self._keep_time, name=f"{self._name}-clock", daemon=True)
            clock.start()
            self._clock = clock
        self.schedule(stream)

    def schedule(self, stream: EngineHandle) -> None:
        """Give the stream a turn, unless it waits for one."""
        with self._lock:
            if not (stream.active or stream.ended):
                self._activate(stream)

    def wait(self, condition: Callable[[], bool], timeout: float) -> None:
        with self._lock:
            self._changed.wait_for(condition, timeout)

    def close(self, timeout: float) -> None:
        """End the threads; those whose engine does not return within ``timeout`` seconds are left."""
        with self._lock:
            self._closing = True
            self._timed.notify()
            stuck = self._active > 0
        for _ in self._threads:
            self._queue.put(None)
        for thread in (*self._threads, *([self._clock] if self._clock else ())):
            thread.join(timeout if stuck else None)

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    # --- with the lock held --------------------------------------------------------------------------------------

    def _activate(self, stream: EngineHandle) -> None:
        """There is a thread for each active stream, up to the limit."""
        if self._active >= len(self._threads) < self._most:
            self._add_thread()
        stream.active = True
        self._active += 1
        self._queue.put(stream)

    def _add_thread(self) -> None:
        try:
            push = inproc_socket(self._context, zmq.PUSH)
            try:
                thread = threading.Thread(target=self._run, args=(push,), name=self._next_name(), daemon=True)
                thread.start()
            except BaseException:
                push.close(0)
                raise
        except (zmq.ZMQError, RuntimeError):  # no more sockets, files or threads
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _next_name(self) -> str:
        return self._name if self._own else f"{self._name}-{len(self._threads) + 1}"

    def _set_timer(self, stream: EngineHandle, due: float) -> None:
        """A later timer than the stream has is set when that one is over: most streams move theirs at each batch."""
        if stream.timer is not None and stream.timer <= due:
            return
        stream.timer = due
        heapq.heappush(self._timers, (due, next(self._numbers), stream))
        if self._timers[0][0] == due:
            self._timed.notify()

    def _wake_due(self, now: float) -> float | None:
        """Give their turns to streams whose timers are over; seconds to the next timer."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, _, stream = heapq.heappop(timers)
            if stream.timer != at:  # it has an earlier one by now
                continue
            stream.timer = None
            if stream.active or stream.ended or stream.due is None:
                continue
            if stream.due > now:
                self._set_timer(stream, stream.due)
            else:
                self._activate(stream)
        return timers[0][0] - now if timers else None

    # --- the threads ---------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        with self._lock:
            while not self._closing:
                self._timed.wait(self._wake_due(time.monotonic()))

    def _run(self, push: zmq.Socket[bytes]) -> None:
        connected = False
        try:
            while (stream := self._next()) is not None:
                due = stream.take_turn()
                reports = stream.actor.take_reports()
                if reports and not connected:
                    assert stream.actor.endpoint is not None
                    push.connect(stream.actor.endpoint)
                    connected = True
                for _ in range(reports):
                    push.send(stream.name)
                self._end_turn(stream, due)
                if self._own and stream.ended:
                    return
        finally:
            push.close(1000)

    def _next(self) -> EngineHandle | None:
        while True:
            wait = None
            if self._own:  # there is no clock
                with self._lock:
                    wait = self._wake_due(time.monotonic())
            with suppress(Empty):
                return self._queue.get(timeout=wait)

    def _end_turn(self, stream: EngineHandle, due: float | None) -> None:
        with self._lock:
            if stream.over or not stream.started:
                stream.started, stream.ended = True, stream.over
                self._changed.notify_all()
            if not stream.ended and (stream.inbox or due == 0):
                self._queue.put(stream)
                return
            stream.active = False
            self._active -= 1
            stream.due = None if due is None or stream.ended else time.monotonic() + due
            if stream.due is not None:
                self._set_timer(stream, stream.due)


class ReportSocket:
    """The one PULL of the server, for all its streams (ML-16, ML-17). Streams with reports are served in turn."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = inproc_socket(context, zmq.PULL)
        self.endpoint = f"inproc://mama-traffic-{id(self):x}"
        self.socket.bind(self.endpoint)
        self.streams: dict[bytes, EngineHandle] = {}
        self._reporting: dict[EngineHandle, None] = {}  # streams with reports, the next one first

    def add(self, stream: EngineHandle) -> None:
        """The stream's first report answers this TRAFFIC."""
        self.streams[stream.name] = stream
        stream.traffic(self.endpoint)

    def remove(self, stream: EngineHandle) -> None:
        self.streams.pop(stream.name, None)
        self._reporting.pop(stream, None)

    @property
    def has_reports(self) -> bool:
        return bool(self._reporting) or readable(self.socket)

    def take(self, timeout: float = 0.0) -> tuple[EngineHandle, Report] | None:
        """The next report of any stream; None if there is none within ``timeout`` seconds."""
        reporting = self._reporting
        self._find_reporting()
        while not reporting:
            if timeout <= 0 or not readable(self.socket, timeout):
                return None
            self._find_reporting()
        stream = next(iter(reporting))
        del reporting[stream]
        report = stream.actor.reports.popleft()
        if stream.actor.reports:
            reporting[stream] = None  # behind all others
        return stream, report

    def _find_reporting(self) -> None:
        """Receive all announcements, so that a stream with many of them does not hide those of others."""
        while readable(self.socket):
            stream = self.streams.get(self.socket.recv(zmq.NOBLOCK))
            if stream is not None and stream.actor.reports:
                self._reporting[stream] = None

    def close(self) -> None:
        self.socket.close(0)
