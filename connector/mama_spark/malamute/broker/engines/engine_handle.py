"""The server's end of a stream, whose engine runs elsewhere (ML-03, ML-09, ML-10), and its socket for reports (ML-16).

Commands and deliveries travel as batches of references. :mod:`.engine_thread` is the driver of an engine with a thread
of its own, :mod:`.shared_threads` that of engines which share threads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import zmq

from mama_spark.contracts.errors import BackgroundTaskFailed, MamaError
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.malamute.protocol.log_query import LogQuery
from mama_spark.malamute.protocol.message_blocks import MessageBlock
from mama_spark.malamute.zmq_fd_poller import readable

from .base import StreamEngine
from .commands import (
    AcceptBlock,
    AcceptMessage,
    AnswerQuery,
    CancelSubscriptions,
    CompilePattern,
    EngineCommand,
    GiveCredit,
    RecallCredit,
    SyncOutcomes,
)
from .engine_actor import EngineActor
from .engine_thread import EngineThread, inproc_socket
from .registry import engine_class
from .reports import CommandDone, CreditReturned, EngineFailed, QueryAnswered, Report
from .shared_threads import SharedThreads

__all__ = [
    "CommandDone",
    "CreditReturned",
    "EngineFailed",
    "EngineHandle",
    "QueryAnswered",
    "Report",
    "ReportSocket",
]

log = logging.getLogger(__name__)


class EngineDriver(Protocol):
    """Passes commands to an engine and executes them, in order and one after another.

    :ivar batches: batches that the engine has not begun
    :ivar ended: the engine has ended, after $TERM or by an error that it has reported
    :ivar closed: everything is freed
    """

    @property
    def batches(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def post(self, batch: list[EngineCommand]) -> None: ...
    def send(self, *frames: bytes) -> None: ...
    def wait_started(self, timeout: float) -> bool: ...
    def wait_ended(self, timeout: float) -> bool: ...
    def close(self) -> None: ...


class EngineHandle:
    """The server's end of one stream. Not thread-safe.

    :param name: of the stream
    :param engine: name of an engine, or its class
    :param start_timeout: seconds until the engine must have started; None = return at once: then the answer to the
        first TRAFFIC reports that it has started, :class:`EngineFailed` that it cannot
    :param threads: that run the engine; None = a thread of its own
    :raises ConfigError: no such engine, or wrong settings
    :raises BackgroundTaskFailed: the engine did not start
    :raises zmq.ZMQError: no more sockets or files
    :raises RuntimeError: no more threads
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: bytes,
        engine: str | type[StreamEngine] = "simple",
        settings: Mapping[str, Any] | None = None,
        start_timeout: float | None = 30.0,
        threads: SharedThreads | None = None,
    ) -> None:
        cls = engine_class(engine) if isinstance(engine, str) else engine
        self.name = name
        self.stored = cls.stored
        self.batch: list[EngineCommand] = []  #: commands that :meth:`flush` sends
        self.may_end = False  #: set in the engine's thread
        self.error: BaseException | None = None
        self.reports: deque[Report] = deque()
        self._ending = False
        actor = EngineActor(self, cls, settings)
        self._driver: EngineDriver
        self._driver = EngineThread(context, name, actor) if threads is None else threads.drive(name, actor)
        if start_timeout is None or self._driver.wait_started(start_timeout):
            return
        error = self.error
        self.destroy()
        if isinstance(error, MamaError):
            raise error
        raise BackgroundTaskFailed(f"engine of stream {name!r} did not start: {error or 'no answer'}") from error

    def __repr__(self) -> str:
        state = ", ended" if self.ended else ""
        return f"<EngineHandle {self.name!r}, {self.batches} batches waiting{state}>"

    # --- the commands of the specification -----------------------------------------------------------------------

    def verbose(self) -> None:
        self._frames(b"VERBOSE")

    def traffic(self, endpoint: str) -> None:
        """Set the endpoint for deliveries. Idempotent; answered by :class:`CommandDone` each time."""
        self._frames(b"TRAFFIC", endpoint.encode())

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self.batch.append(CompilePattern(client, pattern, after))

    def cancel(self, client: Hashable) -> None:
        self.batch.append(CancelSubscriptions(client))

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        self.batch.append(AcceptMessage(client, address, subject, content, extension))

    def accept_block(self, client: Hashable, address: bytes, block: MessageBlock) -> None:
        """One ACCEPT per message of the block."""
        self.batch.append(AcceptBlock(client, address, block))

    def credit(self, client: Hashable, amount: int | None) -> None:
        self.batch.append(GiveCredit(client, amount))

    def recall(self, client: Hashable) -> None:
        """Take back the client's unused credit; answered by :class:`CreditReturned` at the end of the batch."""
        self.batch.append(RecallCredit(client))

    def sync(self, client: Hashable) -> None:
        self.batch.append(SyncOutcomes(client))

    def ask(self, client: Hashable, query: LogQuery) -> None:
        """Send a query; answered by :class:`QueryAnswered`, after the deliveries of the batch."""
        self.batch.append(AnswerQuery(client, query))

    def flush(self) -> None:
        """Send the commands made so far, as one batch."""
        if self.batch:
            batch, self.batch = self.batch, []
            self.post(batch)

    def post(self, batch: list[EngineCommand]) -> None:
        """Send a batch of commands; the caller must not use the list afterwards."""
        self._driver.post(batch)

    @property
    def batches(self) -> int:
        """Batches that the engine has not begun."""
        return self._driver.batches

    @property
    def closed(self) -> bool:
        """Whether the engine has ended and everything is freed."""
        return self._driver.closed

    def end(self) -> None:
        """Send $TERM after all commands; :meth:`destroy` frees everything when :attr:`ended`. Idempotent."""
        if not self._ending and not self.closed:
            self._ending = True
            self._frames(b"$TERM")

    @property
    def ended(self) -> bool:
        """Whether the engine has ended."""
        return self._driver.ended

    def destroy(self, timeout: float = 30.0) -> None:
        """Send $TERM after all commands; returns when the engine has ended and everything is freed. Idempotent.

        An engine that does not end in that time is logged as an error; the call may then be repeated.
        """
        if self.closed:
            return
        self.end()
        if self._driver.wait_ended(timeout):
            self._driver.close()
        else:  # $TERM is on its way
            log.error("the engine of stream %r does not end", self.name)

    def _frames(self, *frames: bytes) -> None:
        self.flush()
        self._driver.send(*frames)


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
