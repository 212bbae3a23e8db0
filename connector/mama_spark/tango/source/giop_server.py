"""GIOP server of an event source: one thread that answers calls over TCP and runs the timers of the source.

A client that does not read its replies is disconnected when too many octets wait; a client that does not send GIOP gets
a MessageError and is disconnected. A client never blocks other clients or threads that push events.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Protocol

from mama_spark.contracts.connection_pool import require_file_descriptors
from mama_spark.tango.errors import Completed, DevFailed, SystemException, system_exception
from mama_spark.tango.giop import messages
from mama_spark.tango.giop.assembler import MessageAssembler
from mama_spark.tango.giop.cdr import CdrError, CdrReader

from .device_servant import locate_reply, reply, reply_exception

logger = logging.getLogger(__name__)
_MAX_REQUEST = 1 << 20  #: largest size of a request in octets; subscriptions have some hundreds
_MAX_UNSENT = 64 << 20  #: most octets of replies that may wait for a client
_MAX_CLIENTS = 4096
_MAX_WAIT = 5.0
_FILE_DESCRIPTORS = 5  #: three of the event loop, the listener, and the first client


class RequestHandler(Protocol):
    """Executes calls and timers for the server."""

    def call(
        self, request: messages.GiopRequest, reader: CdrReader, client_host: str, local_host: str
    ) -> messages.Body:
        """Execute a call; returns a function that encodes its result.

        :param reader: reader at the start of the arguments
        :param client_host: address of the client
        :param local_host: local address of its connection
        :raises DevFailed: the device refuses the call
        :raises SystemException: there is no such object or operation
        """

    def has(self, key: bytes) -> bool:
        """Whether there is an object with this key."""

    def tick(self) -> float | None:
        """Run timers that are due; returns the seconds until the next one, None if there is none."""


class _Client(asyncio.Protocol):
    """Connection of one client.

    :ivar closing: disconnect when all replies are sent
    """

    def __init__(self, server: GiopServer) -> None:
        self.server, self.assembler = server, MessageAssembler(_MAX_REQUEST)
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(0)  # so that resume_writing means: all is sent
        if len(self.server.clients) >= _MAX_CLIENTS:
            self.transport.abort()
        else:
            self.server.clients.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.clients.discard(self)

    def resume_writing(self) -> None:
        if self.closing:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return  # discard further requests
        try:
            self.assembler.feed(data)
            self._answer_all()
        except Exception:
            logger.exception("a request to a Tango event source failed; the connection is closed")
            self.transport.abort()
        if self.closing and not self.transport.get_write_buffer_size():
            self.transport.close()
        self.server.run_timers()

    def _answer_all(self) -> None:
        while not self.closing:
            try:
                data = self.assembler.next_message()
                if data is None:
                    return
                message, reader = messages.decode(data)
            except CdrError:
                self._refuse(messages.MessageError())
                return
            self._answer(message, reader)
            if self.transport.get_write_buffer_size() > _MAX_UNSENT:
                self.transport.abort()  # the client does not read its replies
                return

    def _answer(self, message: messages.GiopMessage, reader: CdrReader) -> None:
        if isinstance(message, messages.LocateRequest):
            self.transport.write(locate_reply(message, self.server.handler.has(message.key)))
        elif isinstance(message, messages.GiopRequest):
            answer = self._reply(message, reader)
            if message.wants_reply:
                self.transport.write(answer)
        elif isinstance(message, messages.CloseConnection | messages.MessageError):
            self.closing = True
        elif not isinstance(message, messages.CancelRequest):
            self._refuse(messages.MessageError(message.minor, message.little))

    def _refuse(self, answer: messages.MessageError) -> None:
        self.transport.write(messages.encode(answer))
        self.closing = True

    def _reply(self, request: messages.GiopRequest, reader: CdrReader) -> bytes:
        client, local = (self.transport.get_extra_info(end)[0] for end in ("peername", "sockname"))
        try:
            return reply(request, self.server.handler.call(request, reader, client, local))
        except (DevFailed, SystemException) as error:
            return reply_exception(request, error)
        except Exception:
            logger.exception("the operation %s of a Tango event source failed", request.operation)
            return reply_exception(request, system_exception("INTERNAL", 0, Completed.MAYBE))


class GiopServer:
    """GIOP server. The constructor listens; :meth:`start` starts the thread.

    :param port: port to listen at; 0: the system chooses
    :ivar port: port that it listens at
    :raises OSError: the address or the port cannot be bound
    :raises Unavailable: too few file descriptors are left
    """

    def __init__(self, handler: RequestHandler, host: str, port: int) -> None:
        require_file_descriptors(_FILE_DESCRIPTORS, "an event source")
        self.handler = handler
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), backlog=256, family=family)
        self.port: int = self._listener.getsockname()[1]
        self.clients: set[_Client] = set()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"tango-source-{self.port}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and stop the thread; waits until it has stopped."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()
        else:
            self._listener.close()
            self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: _Client(self), sock=self._listener, backlog=256)
        self.run_timers()
        await self._stopped.wait()
        server.close()
        for client in list(self.clients):
            client.transport.abort()
        await asyncio.sleep(0)  # in which their sockets are closed

    def run_timers(self) -> None:
        """Run the timers of the source that are due, and come back when the next one is."""
        try:
            wait = self.handler.tick()
        except Exception:
            logger.exception("a timer of a Tango event source failed")
            wait = 1.0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(
            _MAX_WAIT if wait is None else min(max(wait, 0.0), _MAX_WAIT), self.run_timers
        )
