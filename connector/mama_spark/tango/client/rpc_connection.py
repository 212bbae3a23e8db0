"""Connection for GIOP calls to a server over TCP. Calls are synchronous, one at a time, each with a deadline. A lost
connection is closed (:attr:`RpcConnection.closed`); its owner decides when to open it again."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Self

from ..errors import BadReply, CallLost, ServerAway
from ..giop import messages
from ..giop.cdr import CdrError, CdrReader
from ..giop.ior import Address
from ..giop.messages import MessageAssembler

TIMEOUT = 3.0  #: default timeout of a call in seconds, as in cppTango
_CHUNK = 1 << 16


class RpcConnection:
    """One connection. Threads may share it; their calls wait for each other.

    :param addresses: addresses of the server; :meth:`open` tries them in order
    :param timeout: default timeout of a call in seconds, the wait for calls of other threads included
    :param minor: minor version of GIOP 1
    """

    def __init__(self, addresses: Sequence[Address], *, timeout: float = TIMEOUT, minor: int = 2) -> None:
        self.addresses = tuple(addresses)
        self.timeout = timeout
        self._minor = minor
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._assembler = MessageAssembler(messages.LIMIT)
        self._request_id = 0

    def __repr__(self) -> str:
        where = " or ".join(map(str, self.addresses))
        return f"<RpcConnection to {where}, {'closed' if self.closed else 'open'}, {self._request_id} calls>"

    @property
    def closed(self) -> bool:
        """True before :meth:`open`, after :meth:`close`, and after the connection was lost."""
        return self._socket is None

    def open(self) -> Self:
        """Connect. May be called again after :meth:`close`.

        :raises ServerAway: no address accepted the connection in time
        """
        deadline = time.monotonic() + self.timeout
        self.close()
        reasons = []
        for n, address in enumerate(self.addresses):
            share = max(0.001, (deadline - time.monotonic()) / (len(self.addresses) - n))
            try:
                found = socket.create_connection(address, share)
            except (OSError, UnicodeError) as error:  # UnicodeError: the IDNA codec rejects the host name
                reasons.append(f"{address}: {error}")
                continue
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._assembler = MessageAssembler(messages.LIMIT)
            self._socket = found
            return self
        raise ServerAway("no connection to " + "; ".join(reasons))

    def close(self) -> None:
        """Close the connection; may be called twice. A call that another thread waits for raises."""
        found, self._socket = self._socket, None
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a reply
            found.close()

    def __enter__(self) -> Self:
        return self.open() if self.closed else self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(
        self, key: bytes, operation: str, body: messages.Body | None = None, *, timeout: float | None = None
    ) -> tuple[messages.GiopReply, CdrReader]:
        """Make a call; returns the reply, whatever its status, and a reader at the start of its body.

        :param body: encodes the arguments; None: there are none
        :param timeout: timeout in seconds; None: that of the connection
        :raises ServerAway: the connection is closed, or was lost before the call was sent
        :raises CallLost: no reply arrived in time (the connection stays open), or the connection was lost meanwhile
        :raises BadReply: the server sent no valid GIOP reply (the connection is closed)
        :raises CdrError: ``body`` could not encode the arguments
        """
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not self._lock.acquire(timeout=max(0.0, limit)):
            raise ServerAway(f"{self!r}: calls of other threads took all of {limit:g} s")
        try:
            self._request_id = (self._request_id + 1) & 0x7FFFFFFF
            request = messages.GiopRequest(self._minor, id=self._request_id, key=key, operation=operation)
            self._send(messages.encode(request, body), deadline)
            reply, reader = self._receive(self._request_id, deadline, limit)
        finally:
            self._lock.release()
        if not isinstance(reply, messages.GiopReply):
            raise self._protocol_error(f"the server answered a request with {type(reply).__name__}")
        return reply, reader

    # --- with the lock held ---

    def _send(self, data: bytes, deadline: float) -> None:
        self._detect_close()
        found = self._socket
        if found is None:
            raise ServerAway(f"{self!r}: not connected")
        try:
            found.settimeout(max(0.001, deadline - time.monotonic()))
            found.sendall(data)
        except OSError as error:  # the server received no complete message, so it did not execute the call
            self.close()
            raise ServerAway(f"{self!r}: {error}") from None

    def _detect_close(self) -> None:
        """Raise if the server closed the connection, as servers do after idle minutes. The check precedes the sending
        of a call, so it is certain that the call was not executed."""
        found = self._socket
        if found is None:
            return
        try:
            found.settimeout(0)
            data = found.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self.close()
            raise ServerAway(f"{self!r}: {error}") from None
        if not data:
            self.close()
            raise ServerAway(f"{self!r}: the server closed the connection")
        self._assembler.feed(data)  # replies to calls that have timed out; _receive skips them

    def _receive(self, request_id: int, deadline: float, limit: float) -> tuple[messages.GiopMessage, CdrReader]:
        while True:
            found = self._next_message()
            if found is not None:
                message, _ = found
                if isinstance(message, messages.CloseConnection):
                    self.close()
                    raise ServerAway(f"{self!r}: the server closed the connection and did not execute the call")
                if not isinstance(message, messages.GiopReply | messages.LocateReply) or message.id > request_id:
                    raise self._protocol_error(f"the server sent {type(message).__name__} instead of a reply")
                if message.id == request_id:
                    return found
                continue
            self._receive_chunk(deadline, limit)

    def _receive_chunk(self, deadline: float, limit: float) -> None:
        found = self._socket
        left = deadline - time.monotonic()
        try:
            if found is None:
                raise ConnectionAbortedError("another thread closed the connection")
            if left <= 0:
                raise TimeoutError
            found.settimeout(left)
            data = found.recv(_CHUNK)
            if not data:
                raise ConnectionAbortedError("the server closed the connection")
        except TimeoutError:
            raise CallLost(f"{self!r}: no reply within {limit:g} s") from None
        except OSError as error:
            self.close()
            raise CallLost(f"{self!r}: {error}") from None
        self._assembler.feed(data)

    def _next_message(self) -> tuple[messages.GiopMessage, CdrReader] | None:
        try:
            data = self._assembler.next_message()
            return None if data is None else messages.decode(data)
        except CdrError as error:
            raise self._protocol_error(str(error)) from None

    def _protocol_error(self, reason: str) -> BadReply:
        self.close()
        return BadReply(f"{self!r}: {reason}")
