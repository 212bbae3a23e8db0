"""Drives engines in threads, a turn at a time (ML-04, ML-05, ML-08, ML-16): one in a thread of its own, or those of
many streams in a few.

Commands and reports travel as batches of references: lists in queues in memory. Commands made of strings only (VERBOSE,
TRAFFIC, $TERM) are frames as the specification names them. Each thread has a PUSH socket, on which it announces reports
to the one PULL of the server.

A turn is the start of an engine, one batch of commands, one command made of strings, or one piece of background work.
Streams that have something to do stand in one queue, each at most once, and a thread takes the first of them. So they
have their turns one after another, the methods of an engine are called one after another, and an engine that waits for
its disk occupies one thread while the others go on. A stream with nothing to do costs neither thread nor socket.

One lock guards :attr:`DrivenEngine.active`: whoever puts the stream into the queue sets it, and only the thread that
has executed the turn clears it, if no command has come. A command is in the inbox before the lock is taken, so either
that thread sees it there, or the stream is inactive by then and the command puts it into the queue.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue

import zmq

from .commands import EngineCommand
from .engine_actor import EngineActor


def inproc_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket without high-water marks: its users limit the queued octets."""
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    return made


class DrivenEngine:
    """An engine in :class:`EngineThreads`: passes commands to it, which are executed in order and one after another.

    :ivar inbox: batches and commands made of strings that the engine has not begun
    :ivar active: it is in the queue or in a thread
    :ivar started: its first turn, in which the engine starts, is over
    :ivar ended: it has no more turns, after $TERM or by an error that it has reported
    :ivar due: monotonic time of its next background work; None = after the next command
    :ivar timer: earliest time at which the clock looks at it; None = it does not
    """

    def __init__(self, threads: EngineThreads, name: bytes, actor: EngineActor) -> None:
        self.name = name
        self.actor = actor
        self.inbox: deque[list[EngineCommand] | tuple[bytes, ...]] = deque()
        self.active = self.started = self.terminated = self.ended = False
        self.due: float | None = None
        self.timer: float | None = None
        self._threads = threads

    def post(self, batch: list[EngineCommand]) -> None:
        """Send a batch of commands; the caller must not use the list afterwards."""
        self.inbox.append(batch)
        self._threads.schedule(self)

    def send(self, *frames: bytes) -> None:
        """Send a command made of strings."""
        self.inbox.append(frames)
        self._threads.schedule(self)

    @property
    def batches(self) -> int:
        """Batches that the engine has not begun."""
        return len(self.inbox)

    def wait_ended(self, timeout: float) -> bool:
        self._threads.wait(lambda: self.ended, timeout)
        return self.ended

    def take_turn(self) -> float | None:
        """Returns seconds until the next background work; None = after the next command."""
        actor = self.actor
        try:
            return self._take_turn(actor)
        except BaseException as e:  # noqa: BLE001 whatever an engine raises ends its stream, and nothing else
            actor.fail(e)
            return None

    def _take_turn(self, actor: EngineActor) -> float | None:
        if not self.started:
            actor.start()
            return None
        if not self.inbox:
            return None if actor.failed else actor.work()
        command = self.inbox.popleft()
        if isinstance(command, tuple):
            if not actor.run_frames(command):
                actor.close()
                self.terminated = True
        elif not actor.failed:
            actor.run_batch(command)
        return 0.0 if actor.works else None

    @property
    def over(self) -> bool:
        """Whether it has no more turns: $TERM was executed, or its failure is reported."""
        return self.terminated or (self.actor.failed and self.actor.endpoint is not None)


class EngineThreads:
    """The threads, which are started when they are needed. TRAFFIC names the same endpoint to all streams.

    :param name: of the threads
    :param most: number of threads; 0 = the one engine has a thread of its own, which ends with it
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str, most: int = 0) -> None:
        self._context = context
        self._name = name
        self._own, self._most = not most, max(most, 1)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # a stream has started or ended
        self._timed = threading.Condition(self._lock)  # there is an earlier timer
        self._queue: SimpleQueue[DrivenEngine | None] = SimpleQueue()  # None = the thread is to end
        self._active = 0  # streams in the queue or in a thread
        self._threads: list[threading.Thread] = []
        self._timers: list[tuple[float, int, DrivenEngine]] = []
        self._numbers = count()
        self._clock: threading.Thread | None = None
        self._closing = False

    def __repr__(self) -> str:
        return f"<EngineThreads {self._name!r}, {len(self._threads)} threads, {self._active} streams active>"

    # --- for streams ---------------------------------------------------------------------------------------------

    def drive(self, stream: DrivenEngine) -> None:
        """Start the engine in one of the threads.

        :raises RuntimeError: the system allows no thread at all
        :raises zmq.ZMQError: no socket at all
        """
        if stream.actor.works and self._clock is None and not self._own:
            clock = threading.Thread(target=self._keep_time, name=f"{self._name}-clock", daemon=True)
            clock.start()
            self._clock = clock
        self.schedule(stream)

    def schedule(self, stream: DrivenEngine) -> None:
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

    def _activate(self, stream: DrivenEngine) -> None:
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

    def _set_timer(self, stream: DrivenEngine, due: float) -> None:
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

    def _next(self) -> DrivenEngine | None:
        """The stream that has its turn; None = the thread is to end."""
        while True:
            wait = None
            if self._own:  # there is no clock
                with self._lock:
                    wait = self._wake_due(time.monotonic())
            with suppress(Empty):
                return self._queue.get(timeout=wait)

    def _end_turn(self, stream: DrivenEngine, due: float | None) -> None:
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
