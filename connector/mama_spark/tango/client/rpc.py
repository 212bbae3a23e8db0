"""Calls of Tango devices over one TCP connection: synchronous, each with a deadline.

:class:`RpcConnection` carries calls to one server, :class:`DeviceProxy` makes them for one of its objects, and
:func:`open_device` finds out, by the database where there is one, which those are. Whoever holds a connection decides
when to make a new one: after :class:`~mama_spark.tango.errors.ServerAway` it is closed, and says so (:attr:`closed`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ..errors import BadReply, CallLost, ServerAway, refusal
from ..giop import messages
from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.ior import Address, DeviceName, Reference, parse_device, parse_ior
from ..giop.typecode import STRING, STRINGS, VOID, TypeCode, read_any
from ..idl.calls import (
    ClientIdent,
    CommandCall,
    DeviceInfo,
    DevSource,
    Forwarded,
    Operation,
    ReadCall,
    check,
    device_type,
    read_info,
    read_values,
    reading,
    write_command,
    write_reading,
)
from ..idl.negotiation import (
    CONFIRM,
    IMPORT,
    QUERY,
    SUBSCRIBE,
    Confirmation,
    Imported,
    SubscriberInfo,
    SubscriptionInfo,
    confirm_argin,
    parse_import,
)
from ..types import AttributeValue

T = TypeVar("T")
TIMEOUT = 3.0  #: seconds of a call; what Tango's own clients take
_CHUNK = 1 << 16
_MAX_FORWARDS = 3


class RpcConnection:
    """One connection. Threads may share it: calls go one after the other.

    :param addresses: of the server, tried in order by :meth:`open`
    :param timeout: seconds of every call that says nothing else, its wait for other threads included
    :param minor: version of GIOP to speak
    :param limit: octets of the longest reply
    """

    def __init__(
        self, addresses: Sequence[Address], *, timeout: float = TIMEOUT, minor: int = 2, limit: int = messages.LIMIT
    ) -> None:
        self.addresses = tuple(addresses)
        self.timeout = timeout
        self._minor, self._limit = minor, limit
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._splitter = messages.MessageAssembler(limit)
        self._number = 0

    def __repr__(self) -> str:
        where = " or ".join(map(str, self.addresses))
        return f"<RpcConnection to {where}, {'closed' if self.closed else 'open'}, {self._number} calls>"

    @property
    def closed(self) -> bool:
        """Not opened, closed, or lost."""
        return self._socket is None

    def open(self) -> Self:
        """Connect, also after it was closed.

        :raises ServerAway: nobody listens there, or not in time
        """
        deadline = time.monotonic() + self.timeout
        self.close()
        reasons = []
        for n, address in enumerate(self.addresses):
            share = max(0.001, (deadline - time.monotonic()) / (len(self.addresses) - n))
            try:
                found = socket.create_connection(address, share)
            except (OSError, UnicodeError) as error:  # a host that is no name: the IDNA codec says so
                reasons.append(f"{address}: {error}")
                continue
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._splitter = messages.MessageAssembler(self._limit)
            self._socket = found
            return self
        raise ServerAway("no connection to " + "; ".join(reasons))

    def close(self) -> None:
        """Harmless when it is closed. A call in another thread ends with an error."""
        found, self._socket = self._socket, None
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
            found.close()

    def __enter__(self) -> Self:
        return self.open() if self.closed else self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def call(
        self, key: bytes, operation: str, body: messages.Body | None = None, *, timeout: float | None = None
    ) -> tuple[messages.GiopReply, CdrReader]:
        """The reply, whatever its status, and a reader at its body.

        :raises ServerAway: not connected, or the connection ended before the call went out
        :raises CallLost: no reply in time (the connection stays open), or the connection ended first
        :raises BadReply: the server does not speak GIOP (the connection is closed)
        :raises CdrError: ``body`` could not be written
        """
        reply, reader = self._exchange(
            lambda number: messages.GiopRequest(self._minor, id=number, key=key, operation=operation), body, timeout
        )
        if not isinstance(reply, messages.GiopReply):
            raise self._broken(f"{type(reply).__name__} for a request")
        return reply, reader

    def locate(self, key: bytes, *, timeout: float | None = None) -> bool:
        """Whether the server has this object; errors as :meth:`call`."""
        reply, _ = self._exchange(lambda number: messages.LocateRequest(self._minor, id=number, key=key), None, timeout)
        if not isinstance(reply, messages.LocateReply):
            raise self._broken(f"{type(reply).__name__} for a locate request")
        return reply.status is messages.LocateStatus.OBJECT_HERE

    def _exchange(
        self, request: Callable[[int], messages.GiopMessage], body: messages.Body | None, timeout: float | None
    ) -> tuple[messages.GiopMessage, CdrReader]:
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not self._lock.acquire(timeout=max(0.0, limit)):
            raise ServerAway(f"{self!r}: another call took all of {limit:g} s")
        try:
            self._number = (self._number + 1) & 0x7FFFFFFF
            data = messages.encode(request(self._number), body)
            self._send(data, deadline)
            return self._receive(self._number, deadline, limit)
        finally:
            self._lock.release()

    # --- with the lock held ---

    def _send(self, data: bytes, deadline: float) -> None:
        self._look()
        found = self._socket
        if found is None:
            raise ServerAway(f"{self!r}: not connected")
        try:
            found.settimeout(max(0.001, deadline - time.monotonic()))
            found.sendall(data)
        except OSError as error:  # the server has no whole message, so it does nothing
            self.close()
            raise ServerAway(f"{self!r}: {error}") from None

    def _look(self) -> None:
        """Servers close connections that were silent for minutes: see it before a call goes out, not after."""
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
            raise ServerAway(f"{self!r}: the server closed it")
        self._splitter.feed(data)  # replies that came too late; whoever reads next drops them

    def _receive(self, number: int, deadline: float, limit: float) -> tuple[messages.GiopMessage, CdrReader]:
        while True:
            found = self._next()
            if found is not None:
                message, _ = found
                if isinstance(message, messages.CloseConnection):
                    self.close()
                    raise ServerAway(f"{self!r}: the server closed it without working on the call")
                if not isinstance(message, messages.GiopReply | messages.LocateReply) or message.id > number:
                    raise self._broken(f"{type(message).__name__} instead of a reply")
                if message.id == number:
                    return found
                continue
            self._wait(deadline, limit)

    def _wait(self, deadline: float, limit: float) -> None:
        found = self._socket
        left = deadline - time.monotonic()
        try:
            if found is None:
                raise ConnectionAbortedError("closed meanwhile")
            if left <= 0:
                raise TimeoutError
            found.settimeout(left)
            data = found.recv(_CHUNK)
            if not data:
                raise ConnectionAbortedError("the server closed it")
        except TimeoutError:
            raise CallLost(f"{self!r}: no reply within {limit:g} s") from None
        except OSError as error:
            self.close()
            raise CallLost(f"{self!r}: {error}") from None
        self._splitter.feed(data)

    def _next(self) -> tuple[messages.GiopMessage, CdrReader] | None:
        try:
            data = self._splitter.next_message()
            return None if data is None else messages.decode(data)
        except CdrError as error:
            raise self._broken(str(error)) from None

    def _broken(self, why: str) -> BadReply:
        self.close()
        return BadReply(f"{self!r}: {why}")


def _nothing(_: CdrReader) -> None:
    return None


class DeviceProxy:
    """One object of a server.

    Its methods raise what :meth:`RpcConnection.call` does, :class:`~mama_spark.tango.errors.DevFailed` when the device
    says no, :class:`~mama_spark.tango.errors.SystemException` when the server's ORB does, and
    :class:`~mama_spark.tango.errors.BadReply` for a result that is none.

    :param key: by which its server knows it
    :param name: for people
    """

    def __init__(self, connection: RpcConnection, key: bytes, name: str = "") -> None:
        self.connection, self.key, self.name = connection, key, name or key.decode("latin-1")
        self.client = ClientIdent(pid=os.getpid() & 0xFFFFFFFF)  #: as who it calls

    def __repr__(self) -> str:
        return f"<DeviceProxy {self.name} by {self.connection!r}>"

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def call(
        self,
        operation: str,
        body: messages.Body | None,
        read: Callable[[CdrReader], T],
        *,
        timeout: float | None = None,
    ) -> T:
        """Any operation: ``body`` writes its arguments, ``read`` reads its result."""
        for _ in range(_MAX_FORWARDS):
            reply, reader = self.connection.call(self.key, operation, body, timeout=timeout)
            try:
                return read(check(reply, reader))
            except CdrError as error:
                raise BadReply(f"{operation} of {self.name}: {error}") from None
            except Forwarded as moved:
                if not set(moved.reference.addresses) & set(self.connection.addresses):
                    raise
                self.key = moved.reference.key
        raise ServerAway(f"{operation} of {self.name}: forwarded again and again")

    # --- what it is ---

    def ping(self, *, timeout: float | None = None) -> None:
        """It is there."""
        self.call(Operation.PING, None, _nothing, timeout=timeout)

    def info(self, *, timeout: float | None = None) -> DeviceInfo:
        """Class, server, and version of the interface."""
        return self.call(Operation.INFO, None, read_info, timeout=timeout)

    def adm_name(self, *, timeout: float | None = None) -> str:
        """Name of the admin device of its server."""
        return self.call(Operation.ADM_NAME, None, CdrReader.string, timeout=timeout)

    def is_a(self, idl: int, *, timeout: float | None = None) -> bool:
        """Whether it has this version of the interface, or a newer one."""
        type_id = device_type(idl)
        return self.call(Operation.IS_A, lambda writer: writer.string(type_id), CdrReader.boolean, timeout=timeout)

    def non_existent(self, *, timeout: float | None = None) -> bool:
        """Whether its server says that it is gone."""
        return self.call(Operation.NON_EXISTENT, None, CdrReader.boolean, timeout=timeout)

    # --- what it does ---

    def command(
        self,
        name: str,
        argin: Any = None,
        type: TypeCode | None = None,
        *,
        source: DevSource = DevSource.DEV,
        timeout: float | None = None,
    ) -> Any:
        """A command's result; None of one that has none.

        :param type: of the argument; None: nothing, ``str`` and lists of ``str`` tell by themselves
        """
        code = type or (VOID if argin is None else STRING if isinstance(argin, str) else STRINGS)
        given = CommandCall(name, code, argin, source, self.client)

        def body(writer: CdrWriter) -> None:
            write_command(writer, given, Operation.COMMAND_4)

        return self.call(Operation.COMMAND_4, body, lambda reader: read_any(reader)[1], timeout=timeout)

    def read(
        self,
        names: Sequence[str],
        idl: int = 5,
        *,
        source: DevSource = DevSource.CACHE_DEV,
        timeout: float | None = None,
    ) -> list[AttributeValue]:
        """Attributes, one value for each name; one that could not be read carries its errors.

        :param idl: version of the device's interface
        """
        operation, given = reading(idl), ReadCall(tuple(names), source, self.client)

        def body(writer: CdrWriter) -> None:
            write_reading(writer, given, operation)

        return self.call(operation, body, lambda reader: read_values(reader, operation), timeout=timeout)

    # --- of an admin device ---

    def subscribe(self, subscriber: SubscriberInfo, *, timeout: float | None = None) -> SubscriptionInfo:
        """Negotiate (TG-27, TG-28)."""
        return SubscriptionInfo.parse(*self._longs_and_strings(SUBSCRIBE, subscriber.argin(), timeout))

    def confirm(self, subscriptions: Sequence[Confirmation], *, timeout: float | None = None) -> None:
        """Say that these go on (TG-37). Old servers have no such command: DevFailed, API_CommandNotFound."""
        self.command(CONFIRM, confirm_argin(subscriptions), timeout=timeout)

    def query_event_system(self, *, timeout: float | None = None) -> dict[str, Any]:
        """What the server's event system says of itself."""
        text = self.command(QUERY, timeout=timeout)
        try:
            found: dict[str, Any] = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise BadReply(f"{QUERY} of {self.name}: {error}") from None
        return found

    # --- of the database ---

    def import_device(self, name: str, *, timeout: float | None = None) -> Imported:
        """What the database knows of a device."""
        return parse_import(*self._longs_and_strings(IMPORT, name, timeout))

    def _longs_and_strings(
        self, name: str, argin: str | list[str], timeout: float | None
    ) -> tuple[Sequence[int], Sequence[str]]:
        found = self.command(name, argin, timeout=timeout)
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], list):
            raise BadReply(f"{name} of {self.name} gave no numbers and strings")
        return [int(number) for number in found[0]], found[1]


def reference_of(name: DeviceName, *, timeout: float = TIMEOUT) -> Reference:
    """Where a device is: asks the database, if there is one.

    :raises ServerAway: it, or the network, is away
    :raises DeviceAway: API_DeviceNotExported: the device's server does not run
    :raises DevFailed: the database does not know the device
    :raises BadAddress: it told an address that is none
    """
    if not name.dbase:
        return name.reference
    with open_reference(name.reference, "the database", timeout=timeout) as database:
        found = database.import_device(name.device)
    if not found.exported:
        raise refusal("API_DeviceNotExported", f"{name.device} is not exported", "reference_of")
    return parse_ior(found.ior)


def open_reference(reference: Reference, name: str = "", *, timeout: float = TIMEOUT) -> DeviceProxy:
    """Connect to an object that is known.

    :raises ServerAway: nobody listens there
    """
    connection = RpcConnection(reference.addresses, timeout=timeout, minor=reference.minor)
    return DeviceProxy(connection.open(), reference.key, name)


def open_device(name: DeviceName | str, *, tango_host: str | None = None, timeout: float = TIMEOUT) -> DeviceProxy:
    """Connect to a device by its name; errors as :func:`reference_of`.

    :param tango_host: of names without a host
    :param timeout: seconds of each step, and of calls that say nothing else
    :raises BadAddress: it is no name
    """
    known = parse_device(name, tango_host) if isinstance(name, str) else name
    return open_reference(reference_of(known, timeout=timeout), known.device, timeout=timeout)
