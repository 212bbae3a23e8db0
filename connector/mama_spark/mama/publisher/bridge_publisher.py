"""OpenMAMA's bridge interface of a publisher, over any :class:`PublisherBridge`.

Turns the answers polled from a bridge into callbacks (PE-44..PE-47). The bridge's event style (PE-02) selects the
publisher's callbacks or the transport's topic callback.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mama_spark.contracts.bridge import EventStyle
from mama_spark.contracts.errors import PublishError
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.topics import PART_HEADERS

from ..bridge_loop import SendOutcome, text_of
from ..messages.source_records import MAMA_SOURCE_DISCOVERY_TOPIC
from ..messages.status import Status, StatusError
from ..queue import CallbackDelivery, Queue
from ..states import status_of, topic_event_for
from ..topics import join_topic

if TYPE_CHECKING:
    from ..inbox import Inbox, Request
    from ..transport import Transport


#: ``(publisher, closure)``
OnLifecycle = Callable[[Any, Any], None]
#: ``(publisher, status, info, closure)``
OnAnswer = Callable[[Any, Status, str, Any], None]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class PublisherCallbacks:
    """``mamaPublisherCallbacks``; any of them may be None.

    :param on_create: ``(publisher, closure)``: the publisher is LIVE; on the thread that creates it
    :param on_error: ``(publisher, status, info, closure)``: a send failed after it returned (PE-32); ``info`` is the
        middleware's text, for logs
    :param on_destroy: ``(publisher, closure)``: the publisher is destroyed; on the thread that destroys it
    :param on_success: ``(publisher, status, info, closure)``: a send was acknowledged; ``info`` has stream and sequence
    """

    on_create: OnLifecycle | None = None
    on_error: OnAnswer | None = None
    on_destroy: OnLifecycle | None = None
    on_success: OnAnswer | None = None
    _frozen: bool = field(default=False, init=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_frozen", False):
            raise AttributeError(f"the callbacks of a publisher cannot be changed after its create ({name})")
        if name != "_frozen" and value is not None and not callable(value):
            raise TypeError(f"{name} must be callable or None, got {type(value).__name__}")
        object.__setattr__(self, name, value)

    def frozen(self) -> PublisherCallbacks:
        copy = replace(self)
        copy._frozen = True
        return copy

    def close(self) -> None:
        """``mamaPublisherCallbacks_deallocate``: does nothing."""


Headers = dict[str, list[str]]

_GRACE = 1.0  #: seconds to make the callbacks of received answers when waiting for answers used up the time-out


class BridgePublisher:
    """``bridgeMamaPublisher_*``. After :meth:`destroy`, methods raise :class:`StatusError` NULL_ARG, as OpenMAMA's
    bridges do for a NULL publisher."""

    def __init__(self, transport: Transport, topic: str, headers: Headers | None, parent: object) -> None:
        self.topic = topic
        self._transport, self._loop = transport, transport.loop
        named = headers if transport.loop.bridge.capabilities.headers else None
        # the same column objects for every message: bridges check them once
        empty = MessageBatch.of([topic], [b""], [named] if named else None)
        self._topics, self._headers = empty.topics, empty.headers
        self._parent = parent
        self._callbacks: PublisherCallbacks | None = None
        self._closure: Any = None
        self._delivery = CallbackDelivery(None, self._loop.post)
        self._unanswered = 0  # sends of this publisher without an outcome
        self._dead = False
        self._done = threading.Event()
        self._when_done: Callable[[], None] | None = None

    # --- creating --------------------------------------------------------------------------------------------

    @classmethod
    def create_by_index(
        cls,
        transport: Transport | None,
        index: int,
        symbol: str | None,
        source: str | None,
        root: str | None,
        parent: object | None,
    ) -> BridgePublisher:
        """``bridgeMamaPublisher_createByIndex``. A transport has one connection: the index is 0.

        :raises StatusError: NULL_ARG without a transport or a parent; BAD_SYMBOL for a topic that cannot be published
            to; INVALID_ARG for another index
        """
        if transport is None or parent is None:
            raise StatusError(Status.NULL_ARG, "a publisher needs a transport and a parent")
        if index != 0:
            raise StatusError(Status.INVALID_ARG, f"the transport has one connection, not a number {index}")
        topic = join_topic(root, source, symbol)
        parts = zip(PART_HEADERS.values(), (root, source, symbol), strict=True)
        made = cls(transport, topic, {name: [part] for name, part in parts if part}, parent)
        if topic:
            made._check_topic()
        return made

    @classmethod
    def create(
        cls,
        transport: Transport | None,
        symbol: str | None,
        source: str | None,
        root: str | None,
        parent: object | None,
    ) -> BridgePublisher:
        return cls.create_by_index(transport, 0, symbol, source, root, parent)

    def _check_topic(self) -> None:
        try:
            self._loop.call(lambda: self._loop.check(self._batch(b"")))
        except StatusError as error:
            if error.status is Status.BAD_SYMBOL:
                raise
            # other errors (no stream yet, no answer) may be gone at the first send, which reports them

    def set_user_callbacks(self, queue: Queue | None, callbacks: PublisherCallbacks | None, closure: Any) -> None:
        """``bridgeMamaPublisher_setUserCallbacks`` (PE-44), right after create (PE-45).

        :param callbacks: None, or any of them None = do not call (PE-46)
        """
        self._callbacks, self._closure = callbacks, closure
        self._delivery = CallbackDelivery(queue, self._loop.post)

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, payload: bytes | None) -> None:
        """Send a message.

        :raises StatusError: NULL_ARG without a payload; an immediate error of the bridge
        """
        if payload is None:
            raise StatusError(Status.NULL_ARG, "there is no message to send")
        batch = self._batch(payload)
        queue = self._delivery.queue if self._has_callbacks else None
        if queue is not None:
            queue.reserve()
        try:
            self._loop.call(lambda: self._send(batch))
        except BaseException:
            if queue is not None:
                queue.release()
            raise

    def _send(self, batch: MessageBatch) -> None:
        self._raise_dead()
        # with NULL callbacks the answer is ignored (PE-21)
        tracked = self._has_callbacks or self._topic_events
        self._loop.send(batch, self._settled if tracked else None)
        self._unanswered += tracked

    def _batch(self, payload: bytes) -> MessageBatch:
        return MessageBatch(self._topics, pa.array([payload], pa.binary()), self._headers)

    def send_from_inbox(self, inbox: Inbox | None, payload: bytes | None) -> None:
        """Send a request; replies and errors go only to the inbox's callbacks (PE-27). A request to the source
        discovery topic asks for the image (SD-50).

        :raises StatusError: NULL_ARG without inbox or payload; NOT_IMPLEMENTED if the bridge has no inboxes, or no
            source discovery
        """
        if inbox is None or payload is None:
            raise StatusError(Status.NULL_ARG, "a request needs an inbox and a message")
        self._raise_dead()
        if self.topic == MAMA_SOURCE_DISCOVERY_TOPIC:
            self._transport.source_discovery_request(inbox)
        else:
            inbox.request(self.topic, payload)

    def send_from_inbox_by_index(self, index: int, inbox: Inbox | None, payload: bytes | None) -> None:
        if index != 0:
            raise StatusError(Status.INVALID_ARG, f"the transport has one connection, not a number {index}")
        self.send_from_inbox(inbox, payload)

    def send_reply_to_inbox(self, request: Request | None, payload: bytes | None) -> None:
        """Answer a request.

        :raises StatusError: NULL_ARG without request or payload; INVALID_ARG if it did not come from an inbox
        """
        if request is None or payload is None:
            raise StatusError(Status.NULL_ARG, "a reply needs a request and a message")
        if request.reply_to is None:
            raise StatusError(Status.INVALID_ARG, "the request did not come from an inbox")
        self._raise_dead()
        self.send_reply_to_inbox_handle(request.reply_to, payload)

    def send_reply_to_inbox_handle(self, handle: str | None, payload: bytes | None) -> None:
        if not handle or payload is None:
            raise StatusError(Status.NULL_ARG, "a reply needs the handle of a request and a message")
        self._raise_dead()
        self._loop.call(lambda: self._loop.request_bridge().reply(handle, payload))

    # --- answers, on the loop's thread -----------------------------------------------------------------------

    @property
    def _has_callbacks(self) -> bool:
        cb = self._callbacks
        own_events = self._transport.events is EventStyle.PUBLISHER
        return own_events and cb is not None and (cb.on_error is not None or cb.on_success is not None)

    @property
    def _topic_events(self) -> bool:
        return self._transport.events is EventStyle.TRANSPORT and self._transport.topic_callback is not None

    def _settled(self, outcome: SendOutcome | PublishError | None) -> None:
        if self._transport.events is EventStyle.TRANSPORT:
            if isinstance(outcome, PublishError):
                self._transport.report_topic_event(topic_event_for(status_of(outcome)), self.topic, text_of(outcome))
        else:
            call = self._callback_for(outcome)
            if call is not None:
                self._delivery.add(call)
            elif self._delivery.queue is not None:
                self._delivery.queue.release()
        self._unanswered -= 1
        self._check_done()

    def _callback_for(self, outcome: SendOutcome | PublishError | None) -> Callable[[], None] | None:
        cb = self._callbacks
        if cb is None or outcome is None:
            return None
        if isinstance(outcome, PublishError):
            if cb.on_error is None:
                return None
            return partial(cb.on_error, self._parent, status_of(outcome), text_of(outcome), self._closure)
        if cb.on_success is None:
            return None
        info = " ".join(str(part) for part in outcome if part is not None)
        return partial(cb.on_success, self._parent, Status.OK, info, self._closure)

    # --- destroying ------------------------------------------------------------------------------------------

    def destroy(self, timeout: float) -> bool:
        """Stop sending and make the callbacks of earlier sends; none is made after this.

        Waits until all sends are answered, at most ``timeout`` seconds, and not at all on the loop's thread or from
        within a callback of this publisher. True if the bridge has released the publisher (its onDestroy); otherwise
        :meth:`when_done` reports that later.

        :raises StatusError: NULL_ARG if it was destroyed before
        """
        self._raise_dead()
        deadline = time.monotonic() + timeout
        self._dead = True
        self._loop.call_or_run_inline(self._check_done, timeout)
        if not (self._loop.here or self._delivery.in_callback):
            self._done.wait(max(0.0, deadline - time.monotonic()))
        self._delivery.end(max(deadline, time.monotonic() + _GRACE))
        return self._done.is_set()

    def _check_done(self) -> None:
        if self._dead and not self._unanswered and not self._done.is_set():
            self._done.set()
            if self._when_done is not None:
                self._when_done()

    def when_done(self, call: Callable[[], None]) -> None:
        """Make the call when the bridge has released the publisher, or at once if it already has."""

        def note() -> None:
            self._when_done = call
            if self._done.is_set():
                call()

        self._loop.call_or_run_inline(note, 0.0)

    def call_back(self, call: Callable[[], None]) -> None:
        """Make a lifecycle callback on this thread; after :meth:`destroy`, without waiting for a running callback."""
        self._delivery.make_now(call, 0.0 if self._dead else -1)

    @property
    def callback_errors(self) -> int:
        return self._delivery.errors

    @property
    def in_callback(self) -> bool:
        return self._delivery.in_callback

    def _raise_dead(self) -> None:
        if self._dead:
            raise StatusError(Status.NULL_ARG, "the publisher was destroyed")
