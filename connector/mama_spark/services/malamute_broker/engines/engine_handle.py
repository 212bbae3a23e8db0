"""The broker's handle of an engine, which runs in its own thread behind inproc sockets (ML-08, ML-16).

A stream has two sockets: a PAIR pipe for commands to the engine, and a PUSH from the engine to the one PULL of the
server. Frames are expensive, so commands and deliveries are passed as **batches of references**: a list in a queue in
memory, announced by one frame on the socket. Commands made of strings only
(VERBOSE, TRAFFIC, $TERM) are frames as the specification names them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import zmq

from mama_spark.errors import BackgroundTaskFailed, MamaError
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.malamute.protocol.log_query import LogQuery
from mama_spark.malamute.protocol.message_blocks import MessageBlock

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
from .engine_thread import BATCH, READY, EngineThread, inproc_socket
from .registry import engine_class
from .reports import CommandDone, CreditReturned, EngineFailed, QueryAnswered, Report

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
#: Of pipes: an address that another stream has just closed may still be bound for a moment.
_NUMBERS = count()


class EngineHandle:
    """The server's end of one stream. Not thread-safe.

    :param name: of the stream
    :param engine: name of an engine, or its class
    :param start_timeout: seconds until the engine must have started; None = return at once: then the answer to the
        first TRAFFIC reports that it has started, :class:`EngineFailed` that it cannot
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
    ) -> None:
        cls = engine_class(engine) if isinstance(engine, str) else engine
        self.name = name
        self.stored = cls.stored
        self.batch: list[EngineCommand] = []  #: commands that :meth:`flush` sends
        self.inbox: deque[list[EngineCommand]] = deque()
        self.may_end = False  #: set by the engine's thread
        self._ending = False
        self.reports: deque[Report] = deque()
        endpoint = f"inproc://mama-stream-{next(_NUMBERS)}"
        self._pipe = inproc_socket(context, zmq.PAIR)
        self._pipe.bind(endpoint)
        self.error: BaseException | None = None
        try:
            theirs = inproc_socket(context, zmq.PAIR)
        except zmq.ZMQError:
            self._pipe.close(0)
            raise
        theirs.connect(endpoint)
        thread = EngineThread(context, theirs, self, cls, settings)
        self._thread = threading.Thread(
            target=thread.run, name=f"stream-{name.decode('utf-8', 'replace')}", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # the system allows no more threads
            theirs.close(0)
            self._pipe.close(0)
            raise
        if start_timeout is None:
            return
        if not self._pipe.poll(int(start_timeout * 1000)) or self._pipe.recv() != READY:
            error = self.error
            self.destroy()
            if isinstance(error, MamaError):
                raise error
            raise BackgroundTaskFailed(f"engine of stream {name!r} did not start: {error or 'no answer'}") from error

    def __repr__(self) -> str:
        state = "" if self._thread.is_alive() else ", ended"
        return f"<EngineHandle {self.name!r}, {len(self.inbox)} batches waiting{state}>"

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
        self.inbox.append(batch)
        self._send(BATCH)

    @property
    def batches(self) -> int:
        """Batches that the engine has not begun."""
        return len(self.inbox)

    @property
    def closed(self) -> bool:
        """Whether the thread has ended and everything is freed."""
        return self._pipe.closed

    def end(self) -> None:
        """Send $TERM after all commands; :meth:`destroy` frees everything when :attr:`ended`. Idempotent."""
        if not self._ending and not self._pipe.closed:
            self._ending = True
            self.flush()
            self._send(b"$TERM")

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def destroy(self, timeout: float = 30.0) -> None:
        """Send $TERM after all commands; returns when the thread has ended and everything is freed. Idempotent.

        An engine that does not end in that time is logged as an error; the call may then be repeated.
        """
        if self._pipe.closed:
            return
        self.end()
        self._thread.join(timeout)
        if self._thread.is_alive():  # the pipe stays: $TERM is in it
            log.error("the engine of stream %r does not end", self.name)
        else:
            self._pipe.close(0)

    def _frames(self, *frames: bytes) -> None:
        self.flush()
        self._send(*frames)

    def _send(self, *frames: bytes) -> None:
        with suppress(zmq.Again):  # the engine has ended; its last report has the reason
            if len(frames) == 1:
                self._pipe.send(frames[0], zmq.NOBLOCK)
            else:
                self._pipe.send_multipart(frames, zmq.NOBLOCK)


class ReportSocket:
    """The one PULL of the server, for all its streams (ML-16, ML-17)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = inproc_socket(context, zmq.PULL)
        self.endpoint = f"inproc://mama-traffic-{id(self):x}"
        self.socket.bind(self.endpoint)
        self.streams: dict[bytes, EngineHandle] = {}

    def add(self, stream: EngineHandle) -> None:
        """Receive the stream's reports; the first one answers this TRAFFIC."""
        self.streams[stream.name] = stream
        stream.traffic(self.endpoint)

    def remove(self, stream: EngineHandle) -> None:
        self.streams.pop(stream.name, None)

    def take(self, timeout: float = 0.0) -> tuple[EngineHandle, Report] | None:
        """The next report of any stream; None if there is none within ``timeout`` seconds."""
        while True:
            # While one stream has reports, libzmq looks only once in 100 messages for streams that begin to have some;
            # asking for EVENTS makes it look now, so that all of them have their turn.
            self.socket.getsockopt(zmq.EVENTS)
            try:
                stream = self.streams.get(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                if timeout <= 0 or not self.socket.poll(int(timeout * 1000)):
                    return None
                continue
            if stream is not None and stream.reports:
                return stream, stream.reports.popleft()

    def close(self) -> None:
        self.socket.close(0)
