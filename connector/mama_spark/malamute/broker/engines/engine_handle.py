"""The server's end of a stream, whose engine runs in another thread (ML-03, ML-09, ML-10), and its socket for reports
(ML-16)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import zmq

from mama_spark.malamute.zmq_fd_poller import readable

from .base import StreamEngine
from .commands import Report
from .engine_actor import EngineActor
from .engine_threads import DrivenEngine, EngineThreads, inproc_socket

log = logging.getLogger(__name__)


class EngineHandle(DrivenEngine):
    """The server's end of one stream. Not thread-safe.

    That it has started, its answer to the first TRAFFIC says; that it cannot, :class:`~.commands.EngineFailed`.

    :param name: of the stream
    :param threads: that run the engine; None = a thread of its own
    :raises zmq.ZMQError: no more sockets or files
    :raises RuntimeError: no more threads
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: bytes,
        engine: type[StreamEngine],
        settings: Mapping[str, Any] | None = None,
        threads: EngineThreads | None = None,
    ) -> None:
        self._own = None
        if threads is None:
            threads = self._own = EngineThreads(context, f"stream-{name.decode('utf-8', 'replace')}")
        super().__init__(threads, name, EngineActor(self, engine, settings))
        self.stored = engine.stored
        self.may_end = False  #: set in the engine's thread
        self.error: BaseException | None = None
        self.reports: deque[Report] = deque()
        self._ending = False
        threads.drive(self)

    def __repr__(self) -> str:
        state = ", ended" if self.ended else ""
        return f"<EngineHandle {self.name!r}, {self.batches} batches waiting{state}>"

    def traffic(self, endpoint: str) -> None:
        """Set the endpoint for deliveries. Idempotent; answered by :class:`~.commands.CommandDone` each time."""
        self.send(b"TRAFFIC", endpoint.encode())

    @property
    def closed(self) -> bool:
        """Whether the engine has ended, and its thread if it has one of its own."""
        return self.ended and (self._own is None or not self._own.running)

    def end(self) -> None:
        """Send $TERM after all commands; :meth:`destroy` frees everything when :attr:`ended`. Idempotent."""
        if not self._ending and not self.closed:
            self._ending = True
            self.send(b"$TERM")

    def destroy(self, timeout: float = 30.0) -> None:
        """Send $TERM after all commands; returns when the engine has ended and everything is freed. Idempotent.

        An engine that does not end in that time is logged as an error; the call may then be repeated.
        """
        if self.closed:
            return
        self.end()
        if not self.wait_ended(timeout):  # $TERM is on its way
            log.error("the engine of stream %r does not end", self.name)
        elif self._own is not None:
            self._own.close(timeout)


class ReportSocket:
    """The one PULL of the server, for all its streams (ML-16, ML-17). Streams with reports are served in turn."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = inproc_socket(context, zmq.PULL)
        self.endpoint = f"inproc://mama-traffic-{id(self):x}"
        self.socket.bind(self.endpoint)
        self.streams: dict[bytes, EngineHandle] = {}
        self._reporting: dict[EngineHandle, None] = {}  # streams with reports, the next one first

    def add(self, stream: EngineHandle) -> None:
        """Receive the stream's reports; the first one answers this TRAFFIC."""
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
        report = stream.reports.popleft()
        if stream.reports:
            reporting[stream] = None  # behind all others
        return stream, report

    def _find_reporting(self) -> None:
        """Receive all announcements, so that a stream with many of them does not hide those of others."""
        while readable(self.socket):
            stream = self.streams.get(self.socket.recv(zmq.NOBLOCK))
            if stream is not None and stream.reports:
                self._reporting[stream] = None

    def close(self) -> None:
        self.socket.close(0)
