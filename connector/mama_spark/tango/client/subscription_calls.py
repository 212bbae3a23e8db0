"""Calls of subscriptions: negotiation, confirmation, and reads of values. They block for network I/O."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from mama_spark.contracts.errors import MamaError

from ..errors import BadReply, CallLost, DevFailed, ServerAway
from ..events.event_codec import CallInfo, Data, Event, encode
from ..giop.ior import DeviceName
from ..idl.negotiation import Confirmation, EndpointPair, SubscriberInfo
from ..topics import MulticastRefused, check_endpoint, is_multicast, parse
from ..types import DevError, EventType, InterfaceChange, Severity
from .device_proxy import DeviceConnectionPool, DeviceProxy
from .subscription import Subscription
from .subscription_states import NegotiatedChannel

_PROBE_TIMEOUT = 0.1  # timeout of connecting to one of several endpoints, in seconds (TG-33)
_CLIENT_IDL = 6  # IDL version that this client sends; servers refuse alarm events to older clients
NO_COMMAND = "API_CommandNotFound"  #: reason in the error of a server that does not have a command


#: Events that carry what a read gives.
_READABLE = (EventType.CHANGE, EventType.ARCHIVE)
logger = logging.getLogger(__name__)


def errors_of(error: MamaError) -> tuple[DevError, ...]:
    """Error stack of a failed call, as an EVENT_ERROR carries it (TG-18)."""
    if isinstance(error, DevFailed) and error.errors:
        return error.errors
    reason = "API_DeviceTimedOut" if isinstance(error, CallLost) else "API_CorbaException"
    if isinstance(error, ServerAway) and not isinstance(error, CallLost):
        reason = "API_CantConnectToDevice"
    return (DevError(reason, Severity.ERR, str(error), type(error).__name__),)


class SubscriptionCalls:
    """Makes calls over the connections of one subscriber. Methods may be called in any thread."""

    def __init__(self, connections: DeviceConnectionPool) -> None:
        self._connections = connections

    def close(self) -> None:
        """Close the connections; calls in progress raise."""
        self._connections.close()

    def negotiate(
        self, name: DeviceName, requests: Sequence[tuple[str, EventType]]
    ) -> list[NegotiatedChannel | MamaError]:
        """Negotiate subscriptions to attributes and event types of one device (TG-26 to TG-28); returns a result or an
        error for each, in order."""
        try:
            admin_name, admin = self._connections.admin(name)
        except MamaError as error:
            self._connections.drop(name)
            return [error] * len(requests)
        results: list[NegotiatedChannel | MamaError] = []
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
                topic, pair = str(parse(info.topic)), chosen[info.endpoints]
                results.append(NegotiatedChannel(topic, info.channel, pair, info.device_idl, info.hwm))
            except MamaError as error:
                results.append(error)
                if isinstance(error, ServerAway):  # else every further request would wait for the timeout
                    self._connections.drop(name)
                    self._connections.drop(admin_name)
                    results += [error] * (len(requests) - len(results))
                    break
        return results

    def confirm(self, name: DeviceName, confirmations: Sequence[Confirmation]) -> dict[Confirmation, DevFailed]:
        """Confirm subscriptions (TG-37); returns the confirmations that the server refused, and its errors.

        :param name: any device of the server
        :raises DevFailed: API_CommandNotFound: the server has no command to confirm
        :raises MamaError: the server cannot be reached
        """
        admin_name, admin = self._connections.admin(name)
        try:
            return dict(_confirm(admin, confirmations))
        except ServerAway:
            self._connections.drop(admin_name)
            self._connections.drop(name)
            raise

    def read(self, name: DeviceName, attribute: str, event: EventType, idl: int) -> Data | tuple[DevError, ...]:
        """Read the data that an event of this type would carry now; returns the error stack if that fails."""
        try:
            return _read(self._connections.device(name), attribute, event, idl)
        except MamaError as error:
            if isinstance(error, ServerAway):
                self._connections.drop(name)
            return errors_of(error)

    def ask_servers(
        self, subscriptions: Iterable[tuple[Subscription, str]]
    ) -> Iterator[dict[bytes, int] | list[list[bytes]]]:
        """Ask the servers of connected subscriptions (with their topics) what they have sent: counters of the newest
        events by topic, or of servers that have none, values as frames with the counter 0. A server that does not
        answer is left to the heartbeats."""
        by_server: dict[DeviceName, list[tuple[Subscription, str]]] = defaultdict(list)
        for subscription, topic in subscriptions:
            try:
                by_server[self._connections.admin(subscription.device)[0]].append((subscription, topic))
            except MamaError as error:
                logger.debug("no check of losses of %s: %s", subscription.device, error)
        for server, found in by_server.items():
            try:
                counters = self._sent_counters(found[0][0].device)
                if counters is None:
                    yield self._read_values(found)
                else:
                    keys = {topic.encode("latin-1"): _without_idl(topic) for _, topic in found}
                    yield {topic: counters[key] for topic, key in keys.items() if key in counters}
            except MamaError as error:
                logger.debug("no check of losses of %s: %s", server, error)

    def _sent_counters(self, name: DeviceName) -> dict[str, int] | None:
        """Counters of the newest events that a device's server has sent, by topic without the IDL version; None: its
        release cannot be asked (before Tango 10).

        :raises MamaError: the server cannot be reached, or its reply cannot be used
        """
        try:
            state = self._connections.admin(name)[1].query_event_system()
        except DevFailed as error:
            if error.reason == NO_COMMAND:
                return None
            raise
        try:
            next_counters: dict[str, int] = (state["server"] or {}).get("event_counters") or {}
            return {str(topic).lower(): int(ctr) - 1 for topic, ctr in next_counters.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadReply(f"QueryEventSystem of the server of {name}: unexpected JSON: {error!r}") from None

    def _read_values(self, subscriptions: Iterable[tuple[Subscription, str]]) -> list[list[bytes]]:
        by_device: dict[tuple[DeviceName, int], dict[str, str]] = defaultdict(dict)
        for one, topic in subscriptions:
            if one.event in _READABLE:
                by_device[one.device, one.idl][topic] = one.attribute
        values = [
            (topic, value)
            for (name, idl), topics in by_device.items()
            for topic, value in zip(topics, self._connections.device(name).read([*topics.values()], idl), strict=True)
        ]
        return [frames_of(topic, value) for topic, value in values if not value.errors]


def _topic_host(name: DeviceName) -> str:
    """Servers without a database use the name of their machine in topics, whatever address the client used."""
    host, port = name.address
    if not name.dbase and host in ("127.0.0.1", "::1", "localhost"):
        host = socket.gethostname()
    return f"{host}:{port}"


def _confirm(admin: DeviceProxy, confirmations: Sequence[Confirmation]) -> Iterator[tuple[Confirmation, DevFailed]]:
    """Confirm, and yield the refused confirmations. A server stops at the first one that it refuses, and the rest would
    expire; so the list is bisected."""
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
    """Encode the result of a read in the frames of an event with this topic and the counter 0.

    :raises MamaError: the result cannot be encoded as an event
    """
    parsed = parse(topic)
    if isinstance(result, tuple):
        return encode(Event(parsed, CallInfo(0, True), None, result))
    return encode(Event(parsed, CallInfo(0), result))


def choose(pairs: Sequence[EndpointPair]) -> EndpointPair:
    """Choose the endpoints to connect to: the only pair, or the first pair that accepts connections (TG-33).

    :raises MulticastRefused: all pairs are multicast endpoints
    :raises BadEndpoint: an endpoint is no ``tcp://host:port``
    :raises ServerAway: none of several pairs accepts connections
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


def _without_idl(topic: str) -> str:
    name, _, event = topic.lower().rpartition(".")
    return f"{name}.{event.removeprefix('idl5_')}"
