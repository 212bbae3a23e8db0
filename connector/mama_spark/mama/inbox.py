"""Inboxes receive the replies to requests, request listeners receive requests (``mamaInbox``).

OpenMAMA receives requests through subscriptions. Both specifications define publishers only, so this package has a
:class:`RequestListener` instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ..contracts.bridge import RequestMessage
from .bridge_loop import text_of
from .messages.msg import MamaMsg
from .messages.omnm import BadMessage, decode
from .messages.status import Status, StatusError
from .queue import CallbackDelivery, Queue
from .states import status_of

if TYPE_CHECKING:
    from .transport import Transport

logger = logging.getLogger("mama_spark")

_numbers = count(1)
OnMsg = Callable[[MamaMsg, Any], None]
OnError = Callable[[Status, str, Any], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A received request.

    :ivar reply_to: address for the reply; None if the request was not sent from an inbox
    """

    msg: MamaMsg
    topic: str
    reply_to: str | None


class _Receiver:
    """Receives messages and makes callbacks, on its queue if it has one."""

    def __init__(self, transport: Transport, queue: Queue | None, key: int | str, closure: Any) -> None:
        self.transport, self.closure = transport, closure
        self.dropped = 0  #: messages dropped because the queue was full
        self._key = key
        self._delivery = CallbackDelivery(queue, transport.loop.post)
        self._live = True
        self._lock = threading.Lock()
        if queue is not None:
            queue.open()

    def _raise_dead(self) -> None:
        if not self._live:
            raise StatusError(Status.NULL_ARG, f"the {type(self).__name__.lower()} was destroyed")

    def _queue_call(self, call: Callable[[], None]) -> None:
        queue = self._delivery.queue
        if queue is not None:
            try:
                queue.reserve()
            except StatusError as error:
                self.dropped += 1
                logger.warning("a message for %r is dropped: %s", self, error)
                return
        self._delivery.add(call)

    def call_back_now(self, call: Callable[[], None]) -> None:
        self._delivery.make_now(call)

    def _destroy(self, unregister: Callable[[], None]) -> bool:
        """Stop the callbacks; False if it was destroyed before."""
        with self._lock:
            if not self._live:
                return False
            self._live = False
        self.transport.remove_receiver(self)
        self.transport.loop.call_or_run_inline(unregister, self.transport.destroy_timeout)
        self._delivery.end(0.0)
        if self._delivery.queue is not None:
            self._delivery.queue.close()
        return True

    def destroy(self) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key}{'' if self._live else ' destroyed'}>"


class Inbox(_Receiver):
    """``mamaInbox``: receives the replies to its requests. Made by :meth:`create`."""

    def __init__(self, transport: Transport, queue: Queue | None, on_msg: OnMsg, on_error: OnError | None,
                 on_destroy: Callable[[Inbox, Any], None] | None, closure: Any) -> None:  # fmt: skip
        super().__init__(transport, queue, next(_numbers), closure)
        self._on_msg, self._on_error, self._on_destroy = on_msg, on_error, on_destroy

    @classmethod
    def create(
        cls,
        transport: Transport | None,
        queue: Queue | None,
        on_msg: OnMsg,
        on_error: OnError | None = None,
        on_destroy: Callable[[Inbox, Any], None] | None = None,
        closure: Any = None,
    ) -> Inbox:
        """Each reply calls ``on_msg(msg, closure)`` on the queue, or without one on the transport's thread.

        :param on_error: ``(status, info, closure)``: the topic has no listener, no permission, an undecodable reply
        :param on_destroy: ``(inbox, closure)``
        :raises StatusError: NULL_ARG without transport or ``on_msg``, NOT_IMPLEMENTED if its bridge has no inboxes
        """
        if transport is None or on_msg is None:
            raise StatusError(Status.NULL_ARG, "an inbox needs a transport and a message callback")
        transport.loop.call(transport.loop.request_bridge)
        made = cls(transport, queue, on_msg, on_error, on_destroy, closure)
        transport.add_receiver(made)
        return made

    def request(self, topic: str, payload: bytes) -> None:
        self._raise_dead()
        loop = self.transport.loop
        number = int(self._key)

        def send_request() -> None:
            loop.receivers[number] = self._receive
            loop.request_bridge().request(topic, payload, number)

        loop.call(send_request)

    def _receive(self, message: RequestMessage) -> None:
        if message.error is not None:
            self.fail(status_of(message.error), text_of(message.error))
            return
        try:
            self.deliver(decode(message.payload))
        except BadMessage as error:
            self.fail(error.status, f"unreadable answer: {error.info}")

    def deliver(self, msg: MamaMsg) -> None:
        self._queue_call(partial(self._on_msg, msg, self.closure))

    def fail(self, status: Status, info: str) -> None:
        if self._on_error is not None:
            self._queue_call(partial(self._on_error, status, info, self.closure))

    def destroy(self) -> None:
        """Stop receiving replies. May be repeated."""
        loop, number = self.transport.loop, int(self._key)

        def unregister() -> None:
            if loop.receivers.pop(number, None) is not None and loop.requests is not None:
                loop.requests.forget(number)

        if self._destroy(unregister) and self._on_destroy is not None:
            self.call_back_now(partial(self._on_destroy, self, self.closure))


class RequestListener(_Receiver):
    """Receives the requests sent to a topic: ``on_request(request, closure)``."""

    def __init__(self, transport: Transport, queue: Queue | None, topic: str,
                 on_request: Callable[[Request, Any], None], closure: Any) -> None:  # fmt: skip
        super().__init__(transport, queue, topic, closure)
        self.topic, self._on_request = topic, on_request

    @classmethod
    def create(
        cls,
        transport: Transport,
        queue: Queue | None,
        topic: str,
        on_request: Callable[[Request, Any], None],
        closure: Any = None,
    ) -> RequestListener:
        """Listen to a topic.

        :raises StatusError: INVALID_ARG if the transport listens to it already; NOT_IMPLEMENTED; BAD_SYMBOL; PLATFORM
            with the middleware's text
        """
        loop = transport.loop
        made = cls(transport, queue, topic, on_request, closure)

        def listen() -> None:
            if topic in loop.receivers:
                raise StatusError(Status.INVALID_ARG, f"the transport listens to {topic!r} already")
            loop.request_bridge().listen(topic)
            loop.receivers[topic] = made._receive

        try:
            loop.call(listen)
        except BaseException:
            made._destroy(lambda: None)
            raise
        transport.add_receiver(made)
        return made

    def _receive(self, message: RequestMessage) -> None:
        try:
            request = Request(decode(message.payload), message.topic, message.reply_to)
        except BadMessage as error:
            logger.warning("a request to %r cannot be read: %s", message.topic, error)
            return
        self._queue_call(partial(self._on_request, request, self.closure))

    def destroy(self) -> None:
        """Stop receiving requests. May be repeated."""
        loop = self.transport.loop

        def unregister() -> None:
            if loop.receivers.pop(self.topic, None) is not None and loop.requests is not None:
                loop.requests.unlisten(self.topic)

        self._destroy(unregister)
