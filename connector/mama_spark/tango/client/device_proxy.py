"""DeviceProxy: calls one Tango device over a GIOP connection, opened by its name; and a pool of such connections.

The Tango database returns the address of a device (``DbImportDevice``). The name of a device whose server has no
database contains the address.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self, TypeVar

from ..errors import BadReply, DevFailed, ServerAway, SystemException, refusal
from ..giop import messages
from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.ior import DATABASE_KEY, DeviceName, Reference, parse_device, parse_ior, parse_tango_host
from ..giop.typecode import STRING, STRINGS, VOID, TypeCode, read_any
from ..idl.calls import (
    ClientIdent,
    CommandCall,
    DevSource,
    Forwarded,
    Operation,
    ReadCall,
    check,
    read_values,
    reading,
    write_client,
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
from ..idl.structs import COMMAND_INFO, CONFIG_3, CONFIG_5, Struct, read_pipe
from ..types import AttributeConfig, AttributeValue, CommandInfo, PipeData
from .rpc_connection import RpcConnection

T = TypeVar("T")
ALL_ATTRIBUTES = "All attributes_3"  #: stands for the names of all attributes of the device
_MAX_FORWARDS = 3
_WIDE_LIST, _ADMIN_PREFIX = "DbGetDeviceWideList", "dserver/"


def _read_nothing(_: CdrReader) -> None:
    return None


class DeviceProxy:
    """Proxy of one object of a server: a device, an admin device (DServer), or the database.

    Its methods raise the errors of :meth:`RpcConnection.call`; :class:`~mama_spark.tango.errors.DevFailed` if the
    device refused the call; :class:`~mama_spark.tango.errors.SystemException` if the server's ORB refused it;
    :class:`~mama_spark.tango.errors.BadReply` if the result cannot be decoded. ``timeout`` is in seconds; None: the
    timeout of the connection.

    :param key: object key at its server
    :param name: name of the object in error messages
    """

    def __init__(self, connection: RpcConnection, key: bytes, name: str = "") -> None:
        self.connection, self.key, self.name = connection, key, name or key.decode("latin-1")
        self.client = ClientIdent(pid=os.getpid() & 0xFFFFFFFF)  #: identity that the server gets

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(
        self,
        operation: str,
        body: messages.Body | None,
        read: Callable[[CdrReader], T],
        *,
        timeout: float | None = None,
    ) -> T:
        """Call a CORBA operation; ``body`` encodes its arguments (None: it has none), ``read`` decodes its result."""
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
        raise ServerAway(f"{operation} of {self.name}: forwarded {_MAX_FORWARDS} times in a row")

    def ping(self, *, timeout: float | None = None) -> None:
        self.call(Operation.PING, None, _read_nothing, timeout=timeout)

    def adm_name(self) -> str:
        """Full name of the admin device of its server."""
        return self.call(Operation.ADM_NAME, None, CdrReader.string)

    def command(
        self,
        name: str,
        argin: Any = None,
        type: TypeCode | None = None,
        *,
        source: DevSource = DevSource.DEV,
        timeout: float | None = None,
    ) -> Any:
        """Execute a command; returns its result, None if it has none. ``argin`` None: it has no argument; ``type``
        None: ``argin`` is None, a ``str``, or a list of ``str``."""
        code = type or (VOID if argin is None else STRING if isinstance(argin, str) else STRINGS)
        call = CommandCall(name, code, argin, source, self.client)

        def body(writer: CdrWriter) -> None:
            write_command(writer, call, Operation.COMMAND_4)

        return self.call(Operation.COMMAND_4, body, lambda reader: read_any(reader)[1], timeout=timeout)

    def read(self, names: Sequence[str], idl: int = 5) -> list[AttributeValue]:
        """Read attributes of a device of this IDL version; returns one value for each name, with ``errors`` for one
        that could not be read."""
        operation, call = reading(idl), ReadCall(tuple(names), client=self.client)

        def body(writer: CdrWriter) -> None:
            write_reading(writer, call, operation)

        return self.call(operation, body, lambda reader: read_values(reader, operation))

    def attribute_configs(self, names: Sequence[str] = (ALL_ATTRIBUTES,)) -> list[AttributeConfig]:
        """Configurations of the named attributes; default: of all, State and Status included."""
        try:
            return self._attribute_configs("get_attribute_config_5", CONFIG_5, names)
        except (SystemException, DevFailed):  # the device has an older IDL version
            return self._attribute_configs("get_attribute_config_3", CONFIG_3, names)

    def _attribute_configs(self, operation: str, struct: Struct, names: Sequence[str]) -> list[AttributeConfig]:
        def read(reader: CdrReader) -> list[AttributeConfig]:
            found = list(struct.read_all(reader))
            if names != (ALL_ATTRIBUTES,) and len(found) != len(names):
                raise CdrError(f"the device returned {len(found)} configurations of {len(names)} attributes")
            return found

        return self.call(operation, lambda writer: writer.strings(list(names)), read)

    def command_infos(self) -> tuple[CommandInfo, ...]:
        return self.call("command_list_query_2", None, COMMAND_INFO.read_all)

    def read_pipe(self, name: str) -> PipeData:
        def body(writer: CdrWriter) -> None:
            writer.string(name)
            write_client(writer, self.client)

        return self.call("read_pipe_5", body, read_pipe)

    def subscribe(self, subscriber: SubscriberInfo) -> SubscriptionInfo:
        """Negotiate a subscription (TG-27, TG-28)."""
        return SubscriptionInfo.parse(*self._longs_and_strings(SUBSCRIBE, subscriber.argin()))

    def confirm(self, subscriptions: Sequence[Confirmation]) -> None:
        """Confirm subscriptions (TG-37).

        :raises DevFailed: API_CommandNotFound: the server is too old to have the command
        """
        self.command(CONFIRM, confirm_argin(subscriptions))

    def query_event_system(self) -> dict[str, Any]:
        """The state of the server's event system (``QueryEventSystem``, JSON)."""
        try:
            found: dict[str, Any] = json.loads(self.command(QUERY))
        except (ValueError, TypeError, RecursionError) as error:
            raise BadReply(f"{QUERY} of {self.name}: {error}") from None
        return found

    def import_device(self, name: str) -> Imported:
        """The entry of a device in the database (``DbImportDevice``)."""
        return parse_import(*self._longs_and_strings(IMPORT, name))

    def _longs_and_strings(self, name: str, argin: str | list[str]) -> tuple[Sequence[int], Sequence[str]]:
        found = self.command(name, argin)
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], list):
            raise BadReply(f"{name} of {self.name} did not return a DevVarLongStringArray")
        return [int(number) for number in found[0]], found[1]


def reference_of(name: DeviceName, *, timeout: float) -> Reference:
    """Resolve the name of a device. Asks the database, unless the name says that there is none.

    :param timeout: timeout of connecting and of the call, each in seconds
    :raises ServerAway: the database cannot be reached
    :raises DeviceAway: API_DeviceNotExported: the device's server does not run
    :raises DevFailed: the database has no such device
    :raises BadAddress: the IOR in the database is invalid
    """
    if not name.dbase:
        return name.reference
    with open_reference(name.reference, "the database", timeout=timeout) as database:
        found = database.import_device(name.device)
    if not found.exported:
        raise refusal(
            "API_DeviceNotExported",
            f"{name.device} is not exported: its server was stopped, or never started",
            "reference_of",
        )
    return parse_ior(found.ior)


def open_reference(reference: Reference, name: str, *, timeout: float) -> DeviceProxy:
    """Connect to an object by its reference.

    :raises ServerAway: no address of its server accepted the connection
    """
    connection = RpcConnection(reference.addresses, timeout=timeout, minor=reference.minor)
    return DeviceProxy(connection.open(), reference.key, name)


def open_device(name: DeviceName | str, *, tango_host: str | None = None, timeout: float) -> DeviceProxy:
    """Connect to a device by its name. Raises the errors of :func:`reference_of` and :func:`open_reference`.

    :param tango_host: ``host:port`` of the database of names without a host
    :param timeout: timeout of each step, and default timeout of calls, in seconds
    :raises BadAddress: the name is invalid
    """
    known = parse_device(name, tango_host) if isinstance(name, str) else name
    return open_reference(reference_of(known, timeout=timeout), known.device, timeout=timeout)


def device_names(host: str, pattern: str, timeout: float) -> set[str]:
    """Return the device names in the database that match a pattern, in lower case, whether the devices run or not.
    Names of admin devices are included only if the pattern begins with ``dserver/``.

    :param host: ``host:port`` of the database
    :param pattern: pattern with ``*``, ``?`` and ``[ab]``, in lower case
    :param timeout: timeout of connecting and of the call, each in seconds
    :raises MamaError: the errors of :func:`open_reference` and :class:`DeviceProxy`
    """
    database_pattern = re.sub(r"\?|\[[^\]]*\]", "*", pattern)  # databases have no other wildcard
    reference = Reference(parse_tango_host(host), DATABASE_KEY)
    with open_reference(reference, "the database", timeout=timeout) as database:
        found = database.command(_WIDE_LIST, database_pattern)
    if not isinstance(found, list):
        raise BadReply(f"{_WIDE_LIST} of {host} did not return a DevVarStringArray")
    names = {str(name).lower() for name in found}
    admins = pattern.startswith(_ADMIN_PREFIX)
    return {name for name in names if fnmatchcase(name, pattern) and (admins or not name.startswith(_ADMIN_PREFIX))}


#: Most devices with a connection of their own; the limit of open files is often 1024.
_OWN_CONNECTIONS = 200


class DeviceConnectionPool:
    """Connected device proxies by device name. Any thread may call methods. ``timeout`` of a call is in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._devices: dict[DeviceName, DeviceProxy] = {}
        self._admins: dict[DeviceName, DeviceName] = {}
        self._closed = False

    def close(self) -> None:
        """Close all connections. :meth:`device` then raises."""
        with self._lock:
            self._closed = True
            devices, self._devices = list(self._devices.values()), {}
        for device in devices:
            device.close()

    def device(self, name: DeviceName) -> DeviceProxy:
        """Return a connected proxy of a device.

        :raises MamaError: the device cannot be reached, or the pool is closed
        """
        with self._lock:
            found = self._devices.get(name)
        if found is not None and not found.connection.closed:
            return found
        reference = reference_of(name, timeout=self.timeout)
        shared = self._shared_connection(name, reference)
        found = shared or open_reference(reference, name.device, timeout=self.timeout)
        with self._lock:
            if self._closed:
                found.close()
                raise ServerAway("the subscriber is closed")
            other = self._devices.get(name)
            if other is not None and not other.connection.closed:  # another thread connected it meanwhile
                if other.connection is not found.connection:
                    found.close()
                return other
            self._devices[name] = found
        return found

    def _shared_connection(self, name: DeviceName, reference: Reference) -> DeviceProxy | None:
        """Proxy on the connection of another device of the same server. Devices of a server without a database share
        one connection; devices with a database only when there are many, since calls over one connection wait for each
        other."""
        with self._lock:
            if name.dbase and len(self._devices) < _OWN_CONNECTIONS:
                return None
            for device in self._devices.values():
                if device.connection.addresses == reference.addresses and not device.connection.closed:
                    return DeviceProxy(device.connection, reference.key, name.device)
        return None

    def drop(self, name: DeviceName) -> None:
        """Close the connection of a device. The next use resolves its name and its admin device again."""
        with self._lock:
            found, self._admins = self._devices.pop(name, None), {k: v for k, v in self._admins.items() if k != name}
        if found is not None:
            found.close()

    def admin(self, name: DeviceName) -> tuple[DeviceName, DeviceProxy]:
        """Return the name and a connected proxy of the admin device of a device's server.

        :raises MamaError: the device or the admin device cannot be reached
        """
        with self._lock:
            known = self._admins.get(name)
        if known is None:
            full_name = self.device(name).adm_name()
            known = name.sibling("/".join(full_name.lower().partition("#")[0].split("/")[-3:]))
            with self._lock:
                self._admins[name] = known
        return known, self.device(known)
