"""GIOP server of an event source: one thread that answers calls over TCP and runs the timers of the source.

It runs one loop over non-blocking sockets. A client that does not read its replies is disconnected when too many octets
wait; a client that does not send GIOP gets a MessageError and is disconnected. A client never blocks other clients or
threads that push events.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from typing import Protocol

from mama_spark.tango.errors import Completed, DevFailed, SystemException, system_exception
from mama_spark.tango.giop import messages
from mama_spark.tango.giop.assembler import MessageAssembler
from mama_spark.tango.giop.cdr import CdrError, CdrReader

from .device_servant import locate_reply, reply, reply_exception

logger = logging.getLogger(__name__)
_CHUNK = 1 << 16
_MAX_REQUEST = 1 << 20  #: largest size of a request in octets; subscriptions have some hundreds
_MAX_UNSENT = 64 << 20  #: most octets of replies that may wait for a client
_MAX_CLIENTS = 4096
_MAX_WAIT = 5.0


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


class _Client:
    """Connection of one client.

    :ivar unsent: octets of replies that are not sent yet
    :ivar closing: disconnect when all replies are sent
    """

    __slots__ = ("assembler", "client_host", "closing", "local_host", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.assembler = MessageAssembler(_MAX_REQUEST)
        self.unsent = bytearray()
        self.closing = False
        self.client_host, self.local_host = sock.getpeername()[0], sock.getsockname()[0]


class GiopServer:
    """GIOP server. The constructor listens; :meth:`start` starts the thread.

    :param port: port to listen at; 0: the system chooses
    :ivar port: port that it listens at
    :ivar calls: number of received requests
    :ivar dropped: number of connections that were refused or closed because of errors or limits
    :raises OSError: the address or the port cannot be bound
    """

    def __init__(self, handler: RequestHandler, host: str, port: int) -> None:
        self._handler = handler
        self._listener = socket.create_server((host, port), backlog=256, family=_family(host))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._clients: set[_Client] = set()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.calls = 0
        self.dropped = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"tango-source-{self.port}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread to check its timers now."""
        with contextlib.suppress(OSError):
            self._wake_in.send(b"w")

    def stop(self) -> None:
        """Close all connections and stop the thread; waits until it has stopped."""
        self._stopping = True
        self.wake()
        if self._thread is not None:
            self._thread.join()
        else:
            self._close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                wait = self._tick()
                ready = self._selector.select(_MAX_WAIT if wait is None else min(max(wait, 0.0), _MAX_WAIT))
                for key, mask in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._wake_out:
                        with contextlib.suppress(OSError):
                            self._wake_out.recv(_CHUNK)
                    else:
                        self._handle_io(key.data, mask)
        finally:
            self._close()

    def _tick(self) -> float | None:
        try:
            return self._handler.tick()
        except Exception:
            logger.exception("a timer of a Tango event source failed")
            return 1.0

    def _close(self) -> None:
        for client in list(self._clients):
            self._drop(client)
        for found in (self._listener, self._wake_in, self._wake_out):
            found.close()
        self._selector.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # no more connections, or no file descriptors left
                return
            if len(self._clients) >= _MAX_CLIENTS:
                sock.close()
                self.dropped += 1
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = _Client(sock)
            except OSError:
                sock.close()
                continue
            self._clients.add(client)
            self._selector.register(sock, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(client.sock)
        client.sock.close()

    def _handle_io(self, client: _Client, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                data = client.sock.recv(_CHUNK)
                if not data:
                    self._drop(client)
                    return
                if not client.closing:  # else discard further requests
                    client.assembler.feed(data)
                    self._answer_all(client)
            self._flush(client)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(client)
        except Exception:
            logger.exception("a request to a Tango event source failed; the connection is closed")
            self.dropped += 1
            self._drop(client)

    def _answer_all(self, client: _Client) -> None:
        while not client.closing:
            try:
                data = client.assembler.next_message()
                if data is None:
                    return
                message, reader = messages.decode(data)
            except CdrError:
                client.unsent += messages.encode(messages.MessageError())
                client.closing = True
                self.dropped += 1
                return
            self._answer(client, message, reader)
            if len(client.unsent) > _MAX_UNSENT:
                raise ConnectionAbortedError("the client does not read its replies")

    def _answer(self, client: _Client, message: messages.GiopMessage, reader: CdrReader) -> None:
        if isinstance(message, messages.LocateRequest):
            client.unsent += locate_reply(message, self._handler.has(message.key))
        elif isinstance(message, messages.GiopRequest):
            answer = self._reply(client, message, reader)
            if message.wants_reply:
                client.unsent += answer
        elif isinstance(message, messages.CloseConnection | messages.MessageError):
            client.closing = True
        elif not isinstance(message, messages.CancelRequest):
            client.unsent += messages.encode(messages.MessageError(message.minor, message.little))
            client.closing = True
            self.dropped += 1

    def _reply(self, client: _Client, request: messages.GiopRequest, reader: CdrReader) -> bytes:
        self.calls += 1
        try:
            return reply(request, self._handler.call(request, reader, client.client_host, client.local_host))
        except (DevFailed, SystemException) as error:
            return reply_exception(request, error)
        except Exception:
            logger.exception("the operation %s of a Tango event source failed", request.operation)
            return reply_exception(request, system_exception("INTERNAL", 0, Completed.MAYBE))

    def _flush(self, client: _Client) -> None:
        if client.unsent:
            sent = client.sock.send(client.unsent)
            del client.unsent[:sent]
        if client.unsent:
            self._selector.modify(client.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, client)
        elif client.closing:
            self._drop(client)
        else:
            self._selector.modify(client.sock, selectors.EVENT_READ, client)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
