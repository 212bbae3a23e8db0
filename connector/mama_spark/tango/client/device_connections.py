"""The calls of a subscriber: who a device's server is, negotiation, confirmation, and values that are asked for."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mama_spark.errors import MamaError

from ..errors import CallLost, DevFailed, ServerAway
from ..events.events import Data, Event, encode
from ..events.frames import CallInfo
from ..giop.cdr import CdrReader, CdrWriter
from ..giop.ior import DeviceName, Reference
from ..idl.calls import write_client
from ..idl.negotiation import Confirmation, EndpointPair, SubscriberInfo, SubscriptionInfo
from ..idl.structs import COMMAND_INFO, read_pipe
from ..topics import MulticastRefused, check_endpoint, is_multicast, parse
from ..types import CommandInfo, DevError, EventType, InterfaceChange, PipeData, Severity
from .attributes import attribute_configs
from .rpc import DeviceProxy, open_reference, reference_of
from .subscription_states import NegotiatedChannel

_OWN_CONNECTIONS = 200  # of devices; processes may often open no more than 1024 files
_PROBE_TIMEOUT = 0.1  # seconds of a TCP connect to one of several endpoints (TG-33)
_CLIENT_IDL = 6  # of the newest release; servers send alarms to nobody older
_COMMAND_SIZE = 37
NO_COMMAND = "API_CommandNotFound"  #: why a server that is too old for a command refuses


def errors_of(error: MamaError) -> tuple[DevError, ...]:
    """What an error of a call looks like as EVENT_ERROR (TG-18)."""
    if isinstance(error, DevFailed) and error.errors:
        return error.errors
    reason = "API_DeviceTimedOut" if isinstance(error, CallLost) else "API_CorbaException"
    if isinstance(error, ServerAway) and not isinstance(error, CallLost):
        reason = "API_CantConnectToDevice"
    return (DevError(reason, Severity.ERR, str(error), type(error).__name__),)


@dataclass(frozen=True, slots=True)
class NegotiatedSubscription:
    """A subscription that was agreed on, with what the machine does not need."""

    agreement: NegotiatedChannel
    info: SubscriptionInfo


class DeviceConnectionPool:
    """Connections to devices and admin devices of one subscriber, kept while they are good. For any thread.

    :param timeout: seconds of a call
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._devices: dict[DeviceName, DeviceProxy] = {}
        self._admins: dict[DeviceName, DeviceName] = {}
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            devices, self._devices = list(self._devices.values()), {}
        for device in devices:
            device.close()

    def device(self, name: DeviceName) -> DeviceProxy:
        """A connected one.

        :raises MamaError: it cannot be reached
        """
        with self._lock:
            found = self._devices.get(name)
        if found is not None and not found.connection.closed:
            return found
        reference = reference_of(name, timeout=self.timeout)
        found = self._beside(name, reference) or open_reference(reference, name.device, timeout=self.timeout)
        with self._lock:
            if self._closed:
                found.close()
                raise ServerAway("the subscriber is closed")
            other = self._devices.get(name)
            if other is not None and not other.connection.closed:  # somebody was faster
                if other.connection is not found.connection:
                    found.close()
                return other
            self._devices[name] = found
        return found

    def _beside(self, name: DeviceName, reference: Reference) -> DeviceProxy | None:
        """By a connection to the same server, where devices share one: always without a database, and with one when
        there would be too many. On their own they do not wait for each other's calls."""
        with self._lock:
            if name.dbase and len(self._devices) < _OWN_CONNECTIONS:
                return None
            for device in self._devices.values():
                if device.connection.addresses == reference.addresses and not device.connection.closed:
                    return DeviceProxy(device.connection, reference.key, name.device)
        return None

    def drop(self, name: DeviceName) -> None:
        """Ask anew where it is."""
        with self._lock:
            found, self._admins = self._devices.pop(name, None), {k: v for k, v in self._admins.items() if k != name}
        if found is not None:
            found.close()

    def admin(self, name: DeviceName) -> tuple[DeviceName, DeviceProxy]:
        """The admin device of a device's server."""
        with self._lock:
            known = self._admins.get(name)
        if known is None:
            told = self.device(name).adm_name()
            bare = told.lower().partition("#")[0].split("/")[-3:]
            known = name.sibling("/".join(bare))
            with self._lock:
                self._admins[name] = known
        return known, self.device(known)

    # --- negotiation ---

    def negotiate(
        self, name: DeviceName, wanted: Sequence[tuple[str, EventType]]
    ) -> list[NegotiatedSubscription | MamaError]:
        """For attributes and events of one device, one answer each (TG-26 to TG-28)."""
        try:
            admin_name, admin = self.admin(name)
        except MamaError as error:
            self.drop(name)
            return [error] * len(wanted)
        answers: list[NegotiatedSubscription | MamaError] = []
        pairs: dict[tuple[EndpointPair, ...], EndpointPair] = {}
        for attribute, event in wanted:
            try:
                subscriber = SubscriberInfo(name.device, attribute, event, _CLIENT_IDL)
                info = admin.subscribe(subscriber)
                info = info.completed(self._host(name), name.dbase, subscriber, admin_name.device)
                if info.endpoints not in pairs:
                    pairs[info.endpoints] = choose(info.endpoints)
                assert info.topic is not None
                assert info.channel is not None
                topic = str(parse(info.topic))
                answers.append(
                    NegotiatedSubscription(NegotiatedChannel(topic, info.channel, pairs[info.endpoints]), info)
                )
            except MamaError as error:
                answers.append(error)
                if isinstance(error, ServerAway):  # do not wait for each of them
                    self.drop(name)
                    self.drop(admin_name)
                    answers += [error] * (len(wanted) - len(answers))
                    break
        return answers

    @staticmethod
    def _host(name: DeviceName) -> str:
        """Servers without a database put the name of their host in topics, whatever the client called it."""
        host, port = name.address
        if not name.dbase and host in ("127.0.0.1", "::1", "localhost"):
            host = socket.gethostname()
        return f"{host}:{port}"

    def confirm(self, name: DeviceName, what: Sequence[Confirmation]) -> dict[Confirmation, DevFailed]:
        """TG-37. What the server refused; everything else goes on.

        :param name: of any device of the server
        :raises DevFailed: the server does not know how to be confirmed
        :raises MamaError: none could be confirmed
        """
        admin_name, admin = self.admin(name)
        try:
            return dict(_confirm(admin, what))
        except ServerAway:
            self.drop(admin_name)
            self.drop(name)
            raise

    # --- values ---

    def read(self, name: DeviceName, attribute: str, event: EventType, idl: int) -> Data | tuple[DevError, ...]:
        """What an event would tell if it came now."""
        try:
            return self._read(self.device(name), attribute, event, idl)
        except MamaError as error:
            if isinstance(error, ServerAway):
                self.drop(name)
            return errors_of(error)

    @staticmethod
    def _read(device: DeviceProxy, attribute: str, event: EventType, idl: int) -> Data | tuple[DevError, ...]:
        if event is EventType.ATTR_CONF:
            return attribute_configs(device, [attribute])[0]
        if event is EventType.PIPE:
            return _pipe(device, attribute)
        if event is EventType.INTERFACE_CHANGE:
            return InterfaceChange(True, _commands(device), tuple(attribute_configs(device)))
        value = device.read([attribute], idl)[0]
        return value.errors or value


def _confirm(admin: DeviceProxy, what: Sequence[Confirmation]) -> Iterator[tuple[Confirmation, DevFailed]]:
    """Servers stop at the first one that they refuse, which would let all behind it expire: halves find it."""
    try:
        admin.confirm(what)
    except DevFailed as error:
        if error.reason == NO_COMMAND:
            raise
        if len(what) == 1:
            yield what[0], error
            return
        for half in (what[: len(what) // 2], what[len(what) // 2 :]):
            yield from _confirm(admin, half)


def _pipe(device: DeviceProxy, name: str) -> PipeData:
    def body(writer: CdrWriter) -> None:
        writer.string(name)
        write_client(writer, device.client)

    return device.call("read_pipe_5", body, read_pipe)


def _commands(device: DeviceProxy) -> tuple[CommandInfo, ...]:
    def read(reader: CdrReader) -> tuple[CommandInfo, ...]:
        return tuple(COMMAND_INFO.read(reader) for _ in range(reader.count(_COMMAND_SIZE)))

    return device.call("command_list_query_2", None, read)


def frames_of(topic: str, found: Data | tuple[DevError, ...]) -> list[bytes]:
    """A value that was read, as the server would have sent it."""
    known = parse(topic)
    if isinstance(found, tuple):
        return encode(Event(known, CallInfo(0, True), None, found))
    return encode(Event(known, CallInfo(0), found))


def choose(pairs: Sequence[EndpointPair]) -> EndpointPair:
    """The pair to connect to: the only one, or the first one that takes a connection (TG-33).

    :raises MulticastRefused: there are only such
    :raises BadEndpoint: there is no endpoint that can be connected to
    :raises ServerAway: nobody listens at any of them
    """
    possible = [pair for pair in pairs if not any(map(is_multicast, pair))]
    if not possible:
        raise MulticastRefused(f"events by multicast are not supported: {pairs[0].event[:200]}")
    places = [tuple(map(check_endpoint, pair)) for pair in possible]
    if len(possible) == 1:
        return possible[0]
    for pair, addresses in zip(possible, places, strict=True):
        with contextlib.suppress(OSError):
            for address in addresses:
                socket.create_connection(address, _PROBE_TIMEOUT).close()
            return pair
    raise ServerAway(f"nobody listens at any of {len(possible)} endpoints, the first one {possible[0].event}")
