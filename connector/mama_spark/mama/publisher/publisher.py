"""Publishers with callbacks for their lifecycle and for each send: ``mamaPublisher`` of the specification.

:mod:`mama_spark.mama.states` has the states. ``on_create`` is called once, before create returns; then any number of
``on_error`` and ``on_success``; ``on_destroy`` once, as the last.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from mama_spark.contracts.bridge import EventStyle

from ..messages.msg import MamaMsg
from ..messages.omnm import encode
from ..messages.status import Status, StatusError
from ..states import PublisherState, PublisherStep, TransportTopicEvent, step, string_for_state
from .bridge_publisher import BridgePublisher, PublisherCallbacks

if TYPE_CHECKING:
    from ..inbox import Inbox, Request
    from ..queue import Queue
    from ..transport import Transport


class Publisher:
    """Sends messages to one topic. Made by :meth:`create` or :meth:`create_with_callbacks`; usable from any thread."""

    def __init__(self, transport: Transport, symbol: str | None, source: str | None, root: str | None) -> None:
        self.symbol, self.source, self.root = symbol, source, root
        self.transport = transport
        self._state = PublisherState.CREATING
        self._lock = threading.Lock()  # guards the state transitions
        self._destroyed = threading.Event()  # on_destroy has returned
        self._queue: Queue | None = None
        self._callbacks: PublisherCallbacks | None = None
        self._closure: Any = None
        self._bridge: BridgePublisher

    # --- creating --------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, transport: Transport | None, symbol: str | None = None, source: str | None = None, root: str | None = None
    ) -> Self:
        """A publisher without callbacks, as before the specification (PE-19, PE-20).

        :raises StatusError: as :meth:`create_with_callbacks`
        """
        return cls.create_with_callbacks(transport, None, symbol, source, root, None)

    @classmethod
    def create_with_callbacks(
        cls,
        transport: Transport | None,
        queue: Queue | None,
        symbol: str | None,
        source: str | None,
        root: str | None,
        callbacks: PublisherCallbacks | None,
        closure: Any = None,
    ) -> Self:
        """``mamaPublisher_createWithCallbacks`` (PE-10). ``on_create`` has returned when this returns.

        :param queue: queue of ``on_error`` and ``on_success``; None = they run on the transport's thread
        :param callbacks: copied: later changes have no effect
        :param closure: passed to every callback
        :raises StatusError: INVALID_ARG without a transport; BAD_SYMBOL for a topic that cannot be published to;
            QUEUE_END for a destroyed queue. No callback is called then
        """
        if transport is None:
            raise StatusError(Status.INVALID_ARG, "a publisher needs a transport")
        made = cls(transport, symbol, source, root)
        made._bridge = BridgePublisher.create(transport, symbol, source, root, made)
        made._callbacks = callbacks.frozen() if callbacks is not None else None
        made._closure = closure
        made._bridge.set_user_callbacks(queue, made._callbacks, closure)
        if queue is not None:
            queue.open()
        made._queue = queue
        made._step(PublisherStep.CREATED)
        try:
            transport.add_publisher(made)
        except StatusError:
            if queue is not None:
                queue.close()
            raise
        if made._callbacks is not None and (call := made._callbacks.on_create) is not None:
            # another thread may destroy the transport at any time: no on_create after on_destroy
            made._bridge.call_back(lambda: call(made, closure) if made._state is PublisherState.LIVE else None)
        if transport.events is EventStyle.TRANSPORT:
            transport.report_topic_event(TransportTopicEvent.PUBLISH_CREATE, made.topic, "")
        return made

    # --- properties ------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """Root, source and symbol, joined."""
        return self._bridge.topic

    @property
    def state(self) -> PublisherState:
        """``mamaPublisher_getState`` (PE-34)."""
        return self._state

    string_for_state = staticmethod(string_for_state)

    def get_user_callbacks(self) -> PublisherCallbacks | None:
        """``mamaPublisher_getUserCallbacks``: a copy (PE-25); None if created without callbacks."""
        return None if self._callbacks is None else self._callbacks.frozen()

    @property
    def callback_errors(self) -> int:
        """Number of callbacks that raised; each exception was logged."""
        return self._bridge.callback_errors

    def __repr__(self) -> str:
        return f"<Publisher {self.topic!r} {self._state.name}>"

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, msg: MamaMsg | bytes | None) -> None:
        """Send a message, or an encoded one as bytes. The callbacks report the outcome (PE-29, PE-32).

        :raises StatusError: it failed at once, and no callback will be made (PE-31): NULL_ARG without a message, or
            after destroy; BAD_SYMBOL for a topic that cannot be published to; QUEUE_FULL if the queue has no place for
            its callback; TIMEOUT if the transport did not accept it in time; PLATFORM with the middleware's text
        """
        self._raise_dead()
        self._bridge.send(_payload(msg))

    def send_from_inbox(self, inbox: Inbox | None, msg: MamaMsg | bytes | None) -> None:
        """Send a request; replies and errors go to the inbox, never to callbacks of the publisher (PE-27).

        On the source discovery topic the replies are the image, one message per source (SD-15, SD-50).

        :raises StatusError: as :meth:`send`; NOT_IMPLEMENTED if the bridge has no inboxes or no source discovery
        """
        self._raise_dead()
        self._bridge.send_from_inbox(inbox, _payload(msg))

    def send_reply_to_inbox(self, request: Request | None, reply: MamaMsg | bytes | None) -> None:
        """Answer a request (PE-28).

        :raises StatusError: as :meth:`send`; INVALID_ARG if there is no request, or it did not come from an inbox
        """
        self._raise_dead()
        if request is None:
            raise StatusError(Status.INVALID_ARG, "there is no request to answer")
        self._bridge.send_reply_to_inbox(request, _payload(reply))

    def send_reply_to_inbox_handle(self, handle: str | None, reply: MamaMsg | bytes | None) -> None:
        """:meth:`send_reply_to_inbox` to the ``reply_to`` of a request (PE-28).

        :raises StatusError: as :meth:`send`; NULL_ARG without a handle
        """
        self._raise_dead()
        self._bridge.send_reply_to_inbox_handle(handle, _payload(reply))

    def _raise_dead(self) -> None:
        if self._state not in (PublisherState.CREATING, PublisherState.LIVE):
            raise StatusError(Status.NULL_ARG, f"{self!r} cannot be used any more")

    # --- destroying ------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Destroy the publisher when all sends are answered, or after ``destroy_timeout`` of the transport. May be
        repeated.

        ``on_destroy`` has returned when this returns; the state during it is DESTROYING. In a callback of this
        publisher, or on the transport's thread, it does not wait, and outstanding answers are not reported. The state
        is DESTROYING_WAIT_BRIDGE while the bridge holds the publisher longer.
        """
        with self._lock:
            if self._state is not PublisherState.LIVE:
                return
            self._state = step(self._state, PublisherStep.DESTROY)
        self.transport.remove_publisher(self)
        done = self._bridge.destroy(self.transport.destroy_timeout)
        if self._callbacks is not None and (call := self._callbacks.on_destroy) is not None:
            self._bridge.call_back(lambda: call(self, self._closure))
        if self.transport.events is EventStyle.TRANSPORT:
            self.transport.report_topic_event(TransportTopicEvent.PUBLISH_DESTROY, self.topic, "")
        if self._queue is not None:
            self._queue.close()
        if done:
            self._step(PublisherStep.BRIDGE_DESTROYED)
            self._step(PublisherStep.FREED)
        else:
            self._step(PublisherStep.BRIDGE_RETURNED)
            self._bridge.when_done(lambda: self._step(PublisherStep.BRIDGE_DESTROYED))
        self._destroyed.set()
        self.transport.publisher_destroyed(self)

    def wait_destroyed(self, timeout: float) -> None:
        """Wait until :meth:`destroy` on another thread has returned. Returns at once within a callback of this
        publisher, because destroying waits for that callback."""
        if not self._bridge.in_callback:
            self._destroyed.wait(timeout)

    def destroy_ex(self) -> None:
        """``mamaPublisher_destroyEx``: queue :meth:`destroy` and return at once; without a queue, call it here.

        :raises StatusError: QUEUE_FULL
        """
        if self._queue is None:
            self.destroy()
        elif self._state is PublisherState.LIVE:
            self._queue.enqueue(self.destroy)

    def _step(self, event: PublisherStep) -> None:
        with self._lock:
            self._state = step(self._state, event)


def _payload(msg: MamaMsg | bytes | None) -> bytes | None:
    if msg is None or isinstance(msg, bytes):
        return msg
    if not isinstance(msg, MamaMsg):
        raise StatusError(Status.INVALID_ARG, f"a message is a MamaMsg or bytes, got {type(msg).__name__}")
    return encode(msg)
