"""The calls that subscriptions make: negotiation, confirmation, and reads of values. They block for network I/O."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mama_spark.errors import MamaError

from ..errors import CallLost, DevFailed, ServerAway
from ..events.event_codec import Data, Event, encode
from ..events.frames import CallInfo
from ..giop.ior import DeviceName
from ..idl.negotiation import Confirmation, EndpointPair, SubscriberInfo, SubscriptionInfo
from ..topics import MulticastRefused, check_endpoint, is_multicast, parse
from ..types import DevError, EventType, InterfaceChange, Severity
from .device_connections import DeviceConnectionPool
from .device_proxy import DeviceProxy
from .subscription_states import NegotiatedChannel

_PROBE_TIMEOUT = 0.1  # seconds to connect to one of several alternate endpoints (TG-33)
_CLIENT_IDL = 6  # version that this client announces; servers send alarm events to no older one
NO_COMMAND = "API_CommandNotFound"  #: reason of a server that does not have a command


def errors_of(error: MamaError) -> tuple[DevError, ...]:
    """The error stack that a failed call delivers as EVENT_ERROR (TG-18)."""
    if isinstance(error, DevFailed) and error.errors:
        return error.errors
    reason = "API_DeviceTimedOut" if isinstance(error, CallLost) else "API_CorbaException"
    if isinstance(error, ServerAway) and not isinstance(error, CallLost):
        reason = "API_CantConnectToDevice"
    return (DevError(reason, Severity.ERR, str(error), type(error).__name__),)


@dataclass(frozen=True, slots=True)
class NegotiatedSubscription:
    """Result of a negotiation: what the state machine needs, and the server's whole answer."""

    channel: NegotiatedChannel
    info: SubscriptionInfo


class SubscriptionCalls:
    """Calls over the connections of one subscriber. For any thread."""

    def __init__(self, connections: DeviceConnectionPool) -> None:
        self._connections = connections

    def close(self) -> None:
        """Close the connections; calls under way end with an error."""
        self._connections.close()

    def negotiate(
        self, name: DeviceName, requests: Sequence[tuple[str, EventType]]
    ) -> list[NegotiatedSubscription | MamaError]:
        """Negotiate subscriptions to one device (TG-26 to TG-28).

        :param requests: attribute and event type of each
        :returns: a result or an error for each request
        """
        try:
            admin_name, admin = self._connections.admin(name)
        except MamaError as error:
            self._connections.drop(name)
            return [error] * len(requests)
        results: list[NegotiatedSubscription | MamaError] = []
        chosen: dict[tuple[EndpointPair, ...], EndpointPair] = {}
        for attribute, event in requests:
            try:
                subscriber = SubscriberInfo(name.device, attribute, event, _CLIENT_IDL)
                info = admin.subscribe(subscriber)
                info = info.completed(_topic_host(name), name.dbase, subscriber, admin_name.device)
                if info.endpoints not in chosen:
                    chosen[info.endpoints] = choose(info.endpoints)
                assert info.topic is not None
                assert info.channel is not None
                channel = NegotiatedChannel(str(parse(info.topic)), info.channel, chosen[info.endpoints])
                results.append(NegotiatedSubscription(channel, info))
            except MamaError as error:
                results.append(error)
                if isinstance(error, ServerAway):  # do not run into the timeout for each request
                    self._connections.drop(name)
                    self._connections.drop(admin_name)
                    results += [error] * (len(requests) - len(results))
                    break
        return results

    def confirm(self, name: DeviceName, confirmations: Sequence[Confirmation]) -> dict[Confirmation, DevFailed]:
        """Confirm subscriptions (TG-37); returns those that the server refused, with the reasons.

        :param name: of any device of the server
        :raises DevFailed: the server has no such command
        :raises MamaError: none could be confirmed
        """
        admin_name, admin = self._connections.admin(name)
        try:
            return dict(_confirm(admin, confirmations))
        except ServerAway:
            self._connections.drop(admin_name)
            self._connections.drop(name)
            raise

    def read(self, name: DeviceName, attribute: str, event: EventType, idl: int) -> Data | tuple[DevError, ...]:
        """Read what an event of this type would carry now; errors instead if that fails."""
        try:
            return _read(self._connections.device(name), attribute, event, idl)
        except MamaError as error:
            if isinstance(error, ServerAway):
                self._connections.drop(name)
            return errors_of(error)


def _topic_host(name: DeviceName) -> str:
    """Servers without a database put the name of their machine into topics, whatever address the client used."""
    host, port = name.address
    if not name.dbase and host in ("127.0.0.1", "::1", "localhost"):
        host = socket.gethostname()
    return f"{host}:{port}"


def _confirm(admin: DeviceProxy, confirmations: Sequence[Confirmation]) -> Iterator[tuple[Confirmation, DevFailed]]:
    """A server stops at the first confirmation that it refuses, and all after it would expire: bisect to find it."""
    try:
        admin.confirm(confirmations)
    except DevFailed as error:
        if error.reason == NO_COMMAND:
            raise
        if len(confirmations) == 1:
            yield confirmations[0], error
            return
        middle = len(confirmations) // 2
        for half in (confirmations[:middle], confirmations[middle:]):
            yield from _confirm(admin, half)


def _read(device: DeviceProxy, attribute: str, event: EventType, idl: int) -> Data | tuple[DevError, ...]:
    if event is EventType.ATTR_CONF:
        return device.attribute_configs([attribute])[0]
    if event is EventType.PIPE:
        return device.read_pipe(attribute)
    if event is EventType.INTERFACE_CHANGE:
        return InterfaceChange(True, device.command_infos(), tuple(device.attribute_configs()))
    value = device.read([attribute], idl)[0]
    return value.errors or value


def frames_of(topic: str, result: Data | tuple[DevError, ...]) -> list[bytes]:
    """The frames in which the server would have sent the result of a read."""
    parsed = parse(topic)
    if isinstance(result, tuple):
        return encode(Event(parsed, CallInfo(0, True), None, result))
    return encode(Event(parsed, CallInfo(0), result))


def choose(pairs: Sequence[EndpointPair]) -> EndpointPair:
    """The pair to connect to: the only one, or the first one that accepts a connection (TG-33).

    :raises MulticastRefused: all are multicast endpoints
    :raises BadEndpoint: an endpoint is no ``tcp://host:port``
    :raises ServerAway: none of several pairs accepts a connection
    """
    possible = [pair for pair in pairs if not any(map(is_multicast, pair))]
    if not possible:
        raise MulticastRefused(f"events by multicast are not supported: {pairs[0].event[:200]}")
    addresses = [tuple(map(check_endpoint, pair)) for pair in possible]
    if len(possible) == 1:
        return possible[0]
    for pair, both in zip(possible, addresses, strict=True):
        with contextlib.suppress(OSError):
            for address in both:
                socket.create_connection(address, _PROBE_TIMEOUT).close()
            return pair
    raise ServerAway(f"none of {len(possible)} endpoints accepts a connection; the first one is {possible[0].event}")
