"""Source discovery: the sources of a transport, as messages.

The callbacks receive the image, one message per source; its end, by a callback of our own; then one message per change.
A source that is no longer renewed causes a message with its last record and data state SUSPECT, later state OFFLINE.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from mama_spark.contracts.bridge import DiscoveryBridge, DiscoveryEventKind, Position
from mama_spark.contracts.errors import ClientClosed, MamaError, Unavailable

from ..bridge_loop import BridgeLoop
from ..messages.msg import MamaMsg
from ..messages.source_records import SourceFields
from ..messages.status import Status, StatusError
from ..queue import CallbackDelivery, Queue
from ..states import TransportTopicEvent
from .source_messages import Sources

logger = logging.getLogger("mama_spark")

POLL = 0.1  #: seconds between polls for changes
IMAGE_TIMEOUT = 10.0  #: seconds after which a missing image is an error
MAX_PENDING = 10_000  #: messages that wait for a message callback; no more are read at this number
_TOPIC_EVENTS = {
    DiscoveryEventKind.SUBSCRIBED: TransportTopicEvent.SUBSCRIBED,
    DiscoveryEventKind.UNSUBSCRIBED: TransportTopicEvent.UNSUBSCRIBED,
}

OnMsg = Callable[["SourceDiscovery", MamaMsg, Any], None]
OnError = Callable[["SourceDiscovery", str, Any], None]
OnImageEnd = Callable[["SourceDiscovery", Any], None]


@dataclass(slots=True, kw_only=True)
class SourceDiscoveryCallbacks:
    """The callbacks of source discovery; any of them may be None.

    :param on_msg: ``(discovery, msg, closure)``: one source (SD-25)
    :param on_error: ``(discovery, error, closure)``: a text (SD-24)
    :param on_image_end: ``(discovery, closure)``: all sources of the image were reported. Not in the specification
    """

    on_msg: OnMsg | None = None
    on_error: OnError | None = None
    on_image_end: OnImageEnd | None = None


class ReplyInbox(Protocol):
    """The part of an :class:`~mama_spark.mama.inbox.Inbox` that delivers replies."""

    def deliver(self, msg: MamaMsg) -> None: ...

    def fail(self, status: Status, info: str) -> None: ...


class DiscoveryTransport(Protocol):
    """The part of a :class:`~mama_spark.mama.transport.Transport` that its source discovery uses."""

    name: str
    fields: SourceFields
    loop: BridgeLoop
    destroy_timeout: float

    def source_reader(self) -> DiscoveryLoop: ...

    def report_topic_event(self, event: TransportTopicEvent, topic: str, info: str) -> None: ...


class SourceDiscovery:
    """``mamaSourceDiscovery``. Made by :meth:`create`; usable from any thread."""

    def __init__(self, callbacks: SourceDiscoveryCallbacks, queue: Queue | None, loop: DiscoveryLoop,
                 image_timeout: float) -> None:  # fmt: skip
        self._callbacks = replace(callbacks)
        self._closure: Any = None
        self._loop = loop
        self._delivery = CallbackDelivery(queue, loop.transport.loop.post)
        self._sources = Sources(loop.transport.fields)
        self._pending: deque[MamaMsg | str | None] = deque()  # None: the end of the image
        self._position: Position | None = None
        self._deadline: float | None = time.monotonic() + image_timeout
        self._image_timeout = image_timeout
        self._last_error = ""
        self._unanswered_since: float | None = None
        self._live = True

    @classmethod
    def create(
        cls,
        callbacks: SourceDiscoveryCallbacks | None,
        queue: Queue | None,
        transport: DiscoveryTransport | None,
        *,
        image_timeout: float = IMAGE_TIMEOUT,
    ) -> Self:
        """Send the source discovery request (SD-16, SD-17). Messages are kept until a message callback is set.

        :param queue: queue of the callbacks; None: they run on a thread of the transport
        :param image_timeout: seconds until a missing image is reported to ``on_error``
        :raises StatusError: NOT_IMPLEMENTED without source discovery (SD-18); INVALID_ARG without a transport
        """
        if transport is None:
            raise StatusError(Status.INVALID_ARG, "source discovery needs a transport")
        loop = transport.source_reader()
        made = cls(callbacks or SourceDiscoveryCallbacks(), queue, loop, image_timeout)
        if queue is not None:
            queue.open()
        loop.add(made)
        return made

    def set_msg_callback(self, callback: OnMsg | None) -> None:
        """``mamaSourceDiscovery_setMsgCallback`` (SD-20); delivers the messages kept so far."""
        self._raise_dead()
        self._callbacks.on_msg = callback
        self._loop.wake()

    def set_error_callback(self, callback: OnError | None) -> None:
        """``mamaSourceDiscovery_setErrorCallback`` (SD-21)."""
        self._raise_dead()
        self._callbacks.on_error = callback
        self._loop.wake()

    def set_closure(self, closure: Any) -> None:
        """``mamaSourceDiscovery_setClosure`` (SD-22)."""
        self._raise_dead()
        self._closure = closure

    def destroy(self) -> None:
        """``mamaSourceDiscovery_destroy`` (SD-19): no callback runs after this. May be repeated."""
        if not self._loop.remove(self):
            return
        self._live = False
        self._delivery.end(time.monotonic() + (0.0 if self._loop.here else self._loop.transport.destroy_timeout))
        if self._delivery.queue is not None:
            self._delivery.queue.close()

    def _raise_dead(self) -> None:
        if not self._live:
            raise StatusError(Status.NULL_ARG, f"{self!r} was destroyed")

    def __repr__(self) -> str:
        return f"<SourceDiscovery on {self._loop.transport.name}{'' if self._live else ', destroyed'}>"

    # --- on the loop's thread --------------------------------------------------------------------------------

    def _read_changes(self, bridge: DiscoveryBridge) -> None:
        """Read the image or new changes into the pending messages, unless :data:`MAX_PENDING` are waiting.

        :raises MamaError: the middleware does not answer
        """
        if len(self._pending) >= MAX_PENDING:
            return
        if self._position is None:
            # before the image: changes made during the image are then repeated, not missed
            at = bridge.initial_offset("latest")
            self._pending.extend(self._sources.image([c for c in bridge.image() if c.kind in _OF_SOURCES]))
            if self._deadline is not None:
                self._pending.append(None)
            self._position, self._deadline = at, None
            return
        latest_position = bridge.latest_offset(self._position, MAX_PENDING)
        lost = False
        for block in bridge.read(self._position, latest_position):
            for change in block:
                lost = lost or change.kind is DiscoveryEventKind.GAP
                self._pending.extend(self._sources.messages(change))
                if change.kind in _TOPIC_EVENTS and change.topic is not None:
                    event = _TOPIC_EVENTS[change.kind]
                    self._loop.transport.report_topic_event(event, change.topic, change.info or "")
        self._position = None if lost else latest_position

    def _reset_error(self) -> None:
        """Note that the middleware answered."""
        self._unanswered_since, self._last_error = None, ""

    def _report_error(self, error: MamaError) -> None:
        """Report an error once; a middleware that does not answer, after the time-out."""
        now, text = time.monotonic(), str(error)
        if isinstance(error, Unavailable):
            self._unanswered_since = self._unanswered_since or now
            due = self._unanswered_since + self._image_timeout if self._deadline is None else self._deadline
            if now < due:
                return
            what = "no image of the sources" if self._deadline is not None else "no answer"
            text = f"{what} within {self._image_timeout:g} s: {text}"
        if not self._last_error or (text != self._last_error and not isinstance(error, Unavailable)):
            self._last_error = text
            self._pending.append(text)

    def _deliver_pending(self) -> None:
        """Deliver pending messages until one has no callback or the queue is full."""
        while self._live and self._pending:
            call = self._callback_for(self._pending[0])
            if call is None and not isinstance(self._pending[0], str):
                if self._callbacks.on_msg is None:
                    return  # keep the order: later items wait as well
                self._pending.popleft()
                continue
            if call is not None and self._delivery.queue is not None:
                try:
                    self._delivery.queue.reserve()
                except StatusError:
                    return  # full: retried at the next poll
            item = self._pending.popleft()
            if call is not None:
                self._delivery.add(call)
            else:
                logger.warning("source discovery on %s: %s", self._loop.transport.name, item)

    def _callback_for(self, item: MamaMsg | str | None) -> Callable[[], None] | None:
        cb = self._callbacks
        if isinstance(item, str):
            return None if cb.on_error is None else lambda: cb.on_error and cb.on_error(self, item, self._closure)
        if cb.on_msg is None:
            return None
        if item is None:
            end = cb.on_image_end
            return None if end is None else lambda: end(self, self._closure)
        return lambda: cb.on_msg and cb.on_msg(self, item, self._closure)


_OF_SOURCES = (DiscoveryEventKind.RECORD, DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE)


class DiscoveryLoop:
    """The one thread that calls the discovery bridge of a transport."""

    def __init__(self, transport: DiscoveryTransport, bridge: DiscoveryBridge) -> None:
        self.transport = transport
        self._bridge = bridge
        self._readers: list[SourceDiscovery] = []
        self._image_requests: deque[ReplyInbox] = deque()
        self._open = self._ending = self._woken = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"mama-discovery-{transport.name}", daemon=True)
        self._thread.start()

    @property
    def here(self) -> bool:
        return threading.current_thread() is self._thread

    def add(self, reader: SourceDiscovery) -> None:
        with self._changed:
            self._readers.append(reader)
        self.wake()

    def remove(self, reader: SourceDiscovery) -> bool:
        """Remove a reader; False if it was removed before."""
        with self._changed:
            known = reader in self._readers
            if known:
                self._readers.remove(reader)
            return known

    def send_image(self, inbox: ReplyInbox) -> None:
        """Send the image to an inbox, one message per source."""
        self._image_requests.append(inbox)
        self.wake()

    def wake(self) -> None:
        """Poll at once instead of after :data:`POLL` seconds."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def stop(self, timeout: float) -> None:
        """Destroy the readers and end the thread, which closes the bridge. Waits at most ``timeout`` seconds for it."""
        for reader in list(self._readers):
            reader.destroy()
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if not self.here:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._ending:
                for inbox in [self._image_requests.popleft() for _ in range(len(self._image_requests))]:
                    self._answer_image_request(inbox)
                for reader in list(self._readers):
                    self._poll_reader(reader)
                with self._changed:
                    self._changed.wait_for(lambda: self._woken or self._ending, POLL)
                    self._woken = False
        finally:
            self._bridge.close()

    def _open_bridge(self) -> DiscoveryBridge:
        if not self._open:
            self._bridge.open()
            self._open = True
        return self._bridge

    def _poll_reader(self, reader: SourceDiscovery) -> None:
        try:
            reader._read_changes(self._open_bridge())
            reader._reset_error()
        except Exception as error:  # noqa: BLE001 - the other readers must still be polled
            reader._report_error(self._as_mama_error(error))
        reader._deliver_pending()

    def _answer_image_request(self, inbox: ReplyInbox) -> None:
        try:
            changes = [c for c in self._open_bridge().image() if c.kind in _OF_SOURCES]
        except Exception as error:  # noqa: BLE001 - as above
            inbox.fail(Status.PLATFORM, str(self._as_mama_error(error)))
            return
        for made in Sources(self.transport.fields).image(changes):
            if isinstance(made, str):
                inbox.fail(Status.WRONG_FIELD_TYPE, made)
            else:
                inbox.deliver(made)

    def _as_mama_error(self, error: Exception) -> MamaError:
        """The error as a :class:`MamaError`; closes the bridge if opening it again may help."""
        if not isinstance(error, MamaError):
            logger.error("source discovery on %s", self.transport.name, exc_info=error)
            error = Unavailable(f"{type(error).__name__}: {error}")
        if error.retryable or isinstance(error, ClientClosed):
            self._bridge.close()
            self._open = False
        return error
