"""A transport: one connection of a bridge, with its publishers and inboxes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..contracts.bridge import BridgeEvent, DiscoveryBridge, EventKind, EventStyle, PublisherBridge
from ..options import SinkOptions, option_names
from .bridge_loop import BridgeLoop
from .messages.source_records import DEFAULT_FIELDS, SourceFields
from .messages.status import Status, StatusError
from .properties import TransportProperties, expand
from .queue import Queue
from .states import TransportEvent, TransportTopicEvent

if TYPE_CHECKING:
    from .discovery.discovery import DiscoveryLoop, ReplyInbox

logger = logging.getLogger("mama_spark")


class TransportPublisher(Protocol):
    """A :class:`~mama_spark.mama.publisher.publisher.Publisher`; its module imports this one."""

    @property
    def topic(self) -> str: ...

    def destroy(self) -> None: ...

    def wait_destroyed(self, timeout: float) -> None: ...


class TransportReceiver(Protocol):
    """An :class:`~mama_spark.mama.inbox.Inbox` or a :class:`~mama_spark.mama.inbox.RequestListener`."""

    def destroy(self) -> None: ...


TopicCallback = Callable[["Transport", TransportTopicEvent, str, str, Any], None]
TransportCallback = Callable[["Transport", TransportEvent, str, Any], None]

_EVENTS = {
    EventKind.DISCONNECTED: TransportEvent.DISCONNECT,
    EventKind.RECONNECTED: TransportEvent.RECONNECT,
    EventKind.CLOSED: TransportEvent.CONNECT_FAILED,
}


class Transport:
    """``mamaTransport``. Made by :meth:`create`; usable from any thread.

    :ivar callback_errors: number of callbacks of the transport that raised; each exception is logged
    """

    def __init__(
        self,
        name: str,
        bridge: PublisherBridge,
        discovery: DiscoveryBridge | None,
        properties: TransportProperties | None,
        fields: SourceFields,
        *,
        call_timeout: float,
        answer_timeout: float,
        destroy_timeout: float,
    ) -> None:
        self.name, self.fields = name, fields
        self.destroy_timeout = destroy_timeout
        self.topic_callback: TopicCallback | None = None
        self.callback_errors = 0
        self.loop = BridgeLoop(
            name, bridge, self._on_bridge_event, call_timeout=call_timeout, answer_timeout=answer_timeout
        )  # fmt: skip
        self.events = EventStyle.PUBLISHER  #: how the bridge reports errors (PE-02)
        self._discovery, self._properties = discovery, properties
        self._source_reader: DiscoveryLoop | None = None
        self._topic_closure: Any = None
        self._callback: TransportCallback | None = None
        self._closure: Any = None
        self._queue: Queue | None = None
        self._publishers: set[TransportPublisher] = set()
        self._destroying: set[TransportPublisher] = set()
        self._receivers: set[TransportReceiver] = set()
        self._lock = threading.Lock()
        self._live = True

    @classmethod
    def create(
        cls,
        name: str,
        bridge: PublisherBridge | object,
        discovery: DiscoveryBridge | None = None,
        *,
        properties: TransportProperties | None = None,
        fields: SourceFields = DEFAULT_FIELDS,
        call_timeout: float = 5.0,
        answer_timeout: float = 30.0,
        destroy_timeout: float = 5.0,
    ) -> Self:
        """Connect.

        :param bridge: a publisher bridge that is not open (``mama_spark.nats.attach`` makes one of a connected client;
            then call this from a thread other than that of its event loop); a URL; or options of the sink
        :param discovery: a discovery bridge that is not open; None: that of the URL
        :param properties: properties of the transport; key ``sourcediscovery.supported`` (SD-49) switches source
            discovery; without properties, ``discovery`` does
        :param fields: names and FIDs of source messages
        :param call_timeout: seconds that a send may wait until the bridge accepts it
        :param answer_timeout: seconds after which a send without an answer is an error (TIMEOUT)
        :param destroy_timeout: seconds that destroying waits for answers
        :raises ConfigError, Unavailable: it cannot connect
        """
        from ..registry import connect  # late: it imports the bridge

        publishing, place = connect(bridge)
        made = cls(
            name, publishing, discovery or place, properties, fields,
            call_timeout=call_timeout, answer_timeout=answer_timeout, destroy_timeout=destroy_timeout,
        )  # fmt: skip
        made.loop.start()
        made.events = made.loop.bridge.capabilities.events
        return made

    @classmethod
    def from_properties(cls, name: str, middleware: str, path: str | None = None, **more: Any) -> Self:
        """A transport from ``mama.properties``. Keys: ``mama.<middleware>.transport.<name>.<option>`` for every option
        of the sink (``url`` is required), and ``sourcediscovery.supported``.

        :param path: path of the file; None = the first one along ``WOMBAT_PATH``
        :param more: as :meth:`create`
        :raises ConfigError, Unavailable: no such file, transport or option; it cannot connect
        """
        given = {"transport": name, "bridge": middleware, **({} if path is None else {"properties": path})}
        expanded = expand(given, option_names(SinkOptions), os.environ)
        options = SinkOptions.parse(expanded.options, shared=expanded.shared)
        return cls.create(name, options, properties=expanded.transport, fields=expanded.fields, **more)

    # --- callbacks -------------------------------------------------------------------------------------------

    def set_transport_topic_callback(self, callback: TopicCallback | None, closure: Any = None) -> None:
        """``mamaTransport_setTransportTopicCallback`` (PE-05, PE-16):
        ``callback(transport, event, topic, platform_info, closure)`` replaces the previous one."""
        self.topic_callback, self._topic_closure = callback, closure

    def set_transport_callback(self, callback: TransportCallback | None, closure: Any = None) -> None:
        """``mamaTransport_setTransportCallback``: ``callback(transport, event, platform_info, closure)``."""
        self._callback, self._closure = callback, closure

    def set_transport_callback_queue(self, queue: Queue | None) -> None:
        """Queue for both callbacks; None (the default) = they run on the thread that reports the event."""
        self._queue = queue

    def _on_bridge_event(self, event: BridgeEvent) -> None:
        transport_event = _EVENTS.get(event.kind)
        if transport_event is None:
            logger.warning("transport %s: %s", self.name, event.info)
        elif (callback := self._callback) is not None:
            self._dispatch(partial(callback, self, transport_event, event.info, self._closure))

    def report_topic_event(self, event: TransportTopicEvent, topic: str, info: str) -> None:
        """Call the topic callback, if there is one."""
        if (callback := self.topic_callback) is not None:
            self._dispatch(partial(callback, self, event, topic, info, self._topic_closure))

    def _dispatch(self, call: Callable[[], None]) -> None:
        if self._queue is None:
            self._make_call(call)
            return
        try:
            self._queue.enqueue(partial(self._make_call, call))
        except StatusError as error:
            logger.error("an event of transport %s is lost: %s", self.name, error)

    def _make_call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self.callback_errors += 1
            logger.exception("a callback of transport %s raised", self.name)

    # --- publishers ------------------------------------------------------------------------------------------

    def find_publishers(self, topic: str) -> list[TransportPublisher]:
        """The live publishers of a topic, for topic callbacks, which receive only the topic (PE-03)."""
        with self._lock:
            return [p for p in self._publishers if p.topic == topic]

    def add_publisher(self, publisher: TransportPublisher) -> None:
        """Register a publisher of this transport.

        :raises StatusError: INVALID_ARG if the transport was destroyed
        """
        with self._lock:
            if not self._live:
                raise StatusError(Status.INVALID_ARG, f"{self!r} was destroyed")
            self._publishers.add(publisher)

    def remove_publisher(self, publisher: TransportPublisher) -> None:
        """Call at the start of a publisher's destruction: :meth:`destroy` waits for :meth:`publisher_destroyed`."""
        with self._lock:
            self._publishers.discard(publisher)
            self._destroying.add(publisher)

    def publisher_destroyed(self, publisher: TransportPublisher) -> None:
        """Call when a publisher's ``on_destroy`` has returned."""
        with self._lock:
            self._destroying.discard(publisher)

    def add_receiver(self, receiver: TransportReceiver) -> None:
        """Register a receiver, which :meth:`destroy` destroys."""
        self._receivers.add(receiver)

    def remove_receiver(self, receiver: TransportReceiver) -> None:
        self._receivers.discard(receiver)

    # --- source discovery ------------------------------------------------------------------------------------

    @property
    def supported_key(self) -> str:
        """Name of the property that says whether there is source discovery (SD-49)."""
        if self._properties is not None:
            return self._properties.supported_key
        _, _, where = type(self.loop.bridge).__module__.partition("mama_spark.")
        return f"mama.{where.partition('.')[0] or '<bridge>'}.transport.{self.name}.sourcediscovery.supported"

    def source_reader(self) -> DiscoveryLoop:
        """The thread that reads the sources of this transport, started by the first call.

        :raises StatusError: NOT_IMPLEMENTED, with the name of the property, if there is no source discovery (SD-18)
        """
        from .discovery.discovery import DiscoveryLoop

        wanted = self._properties is None or self._properties.discovery_supported
        if self._discovery is None or not wanted:
            why = f"{self.supported_key} is not true" if not wanted else "its bridge has none"
            raise StatusError(
                Status.NOT_IMPLEMENTED,
                f"no source discovery on transport {self.name}: {why} (property {self.supported_key})",
            )
        with self._lock:
            if not self._live:
                raise StatusError(Status.INVALID_ARG, f"{self!r} was destroyed")
            if self._source_reader is None:
                self._source_reader = DiscoveryLoop(self, self._discovery)
            return self._source_reader

    def source_discovery_request(self, inbox: ReplyInbox) -> None:
        """Request the image of the sources; the inbox receives one message per source (SD-15, SD-50).

        :raises StatusError: as :meth:`source_reader`
        """
        self.source_reader().send_image(inbox)

    # --- destroying ------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Destroy the publishers, each with its ``on_destroy``, then everything else; wait at most ``destroy_timeout``
        seconds until all sends are answered; then close the connection. May be repeated."""
        with self._lock:
            self._live = False
            publishers, receivers = list(self._publishers), list(self._receivers)
            destroying, source_reader = list(self._destroying), self._source_reader
        for publisher in publishers:
            publisher.destroy()
        deadline = time.monotonic() + self.destroy_timeout
        if not self.loop.here:
            for publisher in destroying:  # on another thread
                publisher.wait_destroyed(max(0.0, deadline - time.monotonic()))
        for receiver in receivers:
            receiver.destroy()
        if source_reader is not None:
            source_reader.stop(self.destroy_timeout)
        self.loop.stop(self.destroy_timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return f"<Transport {self.name} {'live' if self._live else 'destroyed'}, {len(self._publishers)} publishers>"
