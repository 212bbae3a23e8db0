"""The thread of an event source: answers calls over TCP, and does what the clock asks for.

One loop over non-blocking sockets. A client that does not read its answers is dropped when too many wait; one that
sends what is no GIOP is told so, and dropped. Nothing that a client does holds up others, or who pushes.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from mama_spark.tango.errors import Completed, DevFailed, SystemException, system_exception
from mama_spark.tango.giop import messages
from mama_spark.tango.giop.cdr import CdrError, CdrReader

from .device_servant import locate_reply, reply, reply_exception

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 16
_LIMIT = 1 << 20  #: octets of a call; those of a subscription have hundreds
_BACKLOG = 64 << 20  #: octets of answers that may wait for a client
_MAX_CLIENTS = 4096
_LONGEST_WAIT = 5.0


class RequestHandler(Protocol):
    """What the loop asks."""

    def call(self, request: messages.GiopRequest, reader: CdrReader, at: tuple[str, str]) -> messages.Body:
        """``at``: addresses of the client, and of this end of its connection."""

    def has(self, key: bytes) -> bool: ...

    def tick(self) -> float | None:
        """Do what is due; seconds until something is, or None."""


class _Client:
    """One connection."""

    __slots__ = ("at", "ending", "out", "sock", "splitter")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.splitter = messages.MessageAssembler(_LIMIT)
        self.out = bytearray()
        self.ending = False
        self.at = (sock.getpeername()[0], sock.getsockname()[0])


class GiopServer:
    """The loop, in a thread of its own.

    :param desk: what it asks
    :ivar port: that it listens at
    """

    def __init__(self, desk: RequestHandler, host: str, port: int) -> None:
        self._desk = desk
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
        self._thread = threading.Thread(target=self._run, name=f"tango-source-{self.port}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something may be due earlier than it was."""
        with contextlib.suppress(OSError):
            self._wake_in.send(b"w")

    def stop(self) -> None:
        """End it, and all connections; returns when it has ended."""
        self._stopping = True
        self.wake()
        if self._thread is not None:
            self._thread.join()
        else:
            self._close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                wait = self._guarded(self._desk.tick)
                ready = self._selector.select(_LONGEST_WAIT if wait is None else min(max(wait, 0.0), _LONGEST_WAIT))
                for key, mask in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._wake_out:
                        with contextlib.suppress(OSError):
                            self._wake_out.recv(_CHUNK)
                    else:
                        self._serve(key.data, mask)
        finally:
            self._close()

    def _guarded(self, act: Callable[[], float | None]) -> float | None:
        try:
            return act()
        except Exception:  # noqa: BLE001 - a fault in here must not end the source for everybody (TG-45)
            _LOG.exception("an event source could not do what was due")
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
            except OSError:  # nobody any more, gone already, or no descriptors left
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

    def _serve(self, client: _Client, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                data = client.sock.recv(_CHUNK)
                if not data:
                    self._drop(client)
                    return
                if not client.ending:  # else it may send what it likes: nobody keeps it
                    client.splitter.feed(data)
                    self._answer_all(client)
            self._flush(client)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(client)
        except Exception:  # noqa: BLE001 - a fault in here must not end the source for everybody (TG-45)
            _LOG.exception("a call to an event source failed; its connection is ended")
            self.dropped += 1
            self._drop(client)

    def _answer_all(self, client: _Client) -> None:
        while not client.ending:
            try:
                data = client.splitter.next_message()
                if data is None:
                    return
                message, reader = messages.decode(data)
            except CdrError:
                client.out += messages.encode(messages.MessageError())
                client.ending = True
                self.dropped += 1
                return
            self._answer(client, message, reader)
            if len(client.out) > _BACKLOG:
                raise ConnectionAbortedError("answers are not read")

    def _answer(self, client: _Client, message: messages.GiopMessage, reader: CdrReader) -> None:
        if isinstance(message, messages.LocateRequest):
            client.out += locate_reply(message, self._desk.has(message.key))
        elif isinstance(message, messages.GiopRequest):
            answer = self._reply(client, message, reader)
            if message.wants_reply:
                client.out += answer
        elif isinstance(message, messages.CloseConnection | messages.MessageError):
            client.ending = True
        elif not isinstance(message, messages.CancelRequest):
            client.out += messages.encode(messages.MessageError(message.minor, message.little))
            client.ending = True
            self.dropped += 1

    def _reply(self, client: _Client, request: messages.GiopRequest, reader: CdrReader) -> bytes:
        self.calls += 1
        try:
            return reply(request, self._desk.call(request, reader, client.at))
        except (DevFailed, SystemException) as error:
            return reply_exception(request, error)
        except Exception:  # noqa: BLE001 - a fault in here must not end the source for everybody (TG-45)
            _LOG.exception("an event source could not answer %s", request.operation)
            return reply_exception(request, system_exception("INTERNAL", 0, Completed.MAYBE))

    def _flush(self, client: _Client) -> None:
        if client.out:
            sent = client.sock.send(client.out)
            del client.out[:sent]
        if client.out:
            self._selector.modify(client.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, client)
        elif client.ending:
            self._drop(client)
        else:
            self._selector.modify(client.sock, selectors.EVENT_READ, client)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
