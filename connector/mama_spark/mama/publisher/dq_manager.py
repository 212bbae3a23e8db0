"""``mamaDQPublisherManager``: the numbered publishers of one source, by symbol, and the requests of its subscribers.

Requests are sent to ``_MD.<source>``. Their fields are the symbol (MdSubscSymbol), the type of the message
(MdSubscMsgType) and the type of the subscription (MdSubscriptionType).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ..inbox import Request, RequestListener
from ..messages.msg import FieldType, MamaMsg
from ..messages.status import ISSUE_SYMBOL, RESERVED, MsgStatus, MsgType, Status, StatusError, SubscriptionMsgType
from ..topics import SUBSCRIPTION_ROOT, join_topic
from .dq import DQPublisher

if TYPE_CHECKING:
    from ..queue import Queue
    from ..transport import Transport

log = logging.getLogger("mama_spark")


@dataclass(eq=False)
class PublishTopic:
    """``mamaPublishTopic``: one topic of a manager.

    :ivar cache: any object of the application
    """

    symbol: str
    publisher: DQPublisher
    cache: Any = None


OnRequest = Callable[["DQPublisherManager", PublishTopic, int, int, Request], None]


@dataclass(frozen=True)
class DQPublisherManagerCallbacks:
    """The callbacks of a manager; any may be None. ``kind`` is the number of the subscription's type, ``message`` that
    of the request's (:class:`SubscriptionMsgType`).

    :ivar on_create: ``(manager)``: it receives requests
    :ivar on_new_request: ``(manager, symbol, kind, message, request)``: for a topic that was not added
    :ivar on_request: ``(manager, topic, kind, message, request)``: for a topic that was added
    :ivar on_refresh: ``(manager, topic, kind, message, request)``: a subscriber still listens; the manager has answered
        on the topic, as OpenMAMA's does
    :ivar on_error: ``(manager, status, info, request)``: a request without a symbol, or without the type of its message
    :ivar on_msg: ``(manager, topic, request)``: a message without the type of a subscription, so no request of a
        subscriber; the topic is None if it was not added
    """

    on_create: Callable[[DQPublisherManager], None] | None = None
    on_new_request: Callable[[DQPublisherManager, str, int, int, Request], None] | None = None
    on_request: OnRequest | None = None
    on_refresh: OnRequest | None = None
    on_error: Callable[[DQPublisherManager, Status, str, Request], None] | None = None
    on_msg: Callable[[DQPublisherManager, PublishTopic | None, Request], None] | None = None


class DQPublisherManager:
    """Made by :meth:`create`; usable from any thread.

    :ivar closure: the argument of :meth:`create`
    """

    def __init__(self, transport: Transport, callbacks: DQPublisherManagerCallbacks, source: str, root: str | None,
                 closure: Any) -> None:  # fmt: skip
        self.transport, self.source, self.root, self.closure = transport, source, root, closure
        self._callbacks = callbacks
        self._topics: dict[str, PublishTopic] = {}
        self._lock = threading.Lock()
        self._listener: RequestListener | None = None

    @classmethod
    def create(
        cls,
        transport: Transport | None,
        queue: Queue | None,
        callbacks: DQPublisherManagerCallbacks,
        source: str,
        root: str | None = None,
        closure: Any = None,
    ) -> Self:
        """Receive the requests for ``source``.

        :param queue: for the callbacks; None = callbacks run on the transport's thread
        :param root: of the topics that are published to
        :raises StatusError: INVALID_ARG without a transport; NOT_IMPLEMENTED if its bridge has no requests
        """
        if transport is None:
            raise StatusError(Status.INVALID_ARG, "a manager needs a transport")
        made = cls(transport, callbacks, source, root, closure)
        topic = join_topic(SUBSCRIPTION_ROOT, source, None)
        made._listener = RequestListener.create(transport, queue, topic, lambda request, _: made._on_request(request))
        if callbacks.on_create is not None:
            made._listener.call_back_now(partial(callbacks.on_create, made))
        return made

    def add_topic(self, symbol: str, cache: Any = None) -> PublishTopic:
        """``mamaDQPublisherManager_addTopic``: the publisher of a symbol; the existing one if it was added before.

        :raises StatusError: as :meth:`DQPublisher.create`
        """
        with self._lock:
            known = self._topics.get(symbol)
            if known is None:
                publisher = DQPublisher.create(self.transport, symbol, self.source, self.root)
                known = self._topics[symbol] = PublishTopic(symbol, publisher, cache)
            return known

    def find_topic(self, symbol: str) -> PublishTopic | None:
        return self._topics.get(symbol)

    def remove_topic(self, symbol: str) -> None:
        """Destroy its publisher.

        :raises StatusError: NOT_FOUND
        """
        with self._lock:
            known = self._topics.pop(symbol, None)
        if known is None:
            raise StatusError(Status.NOT_FOUND, f"topic {symbol!r} was not added")
        known.publisher.destroy()

    def send(self, symbol: str, msg: MamaMsg) -> None:
        """Send to a topic, with the symbol in the message (wIssueSymbol).

        :raises StatusError: NOT_FOUND; as :meth:`DQPublisher.send`
        """
        known = self._topics.get(symbol)
        if known is None:
            raise StatusError(Status.NOT_FOUND, f"topic {symbol!r} was not added")
        msg.update(FieldType.STRING, *ISSUE_SYMBOL, symbol)
        known.publisher.send(msg)

    def destroy(self) -> None:
        """Stop receiving requests and destroy the publishers. May be repeated."""
        if self._listener is not None:
            self._listener.destroy()
        with self._lock:
            topics, self._topics = list(self._topics.values()), {}
        for topic in topics:
            topic.publisher.destroy()

    # --- requests --------------------------------------------------------------------------------------------

    def _on_request(self, request: Request) -> None:
        cb, msg = self._callbacks, request.msg
        symbol = _of(msg, "MdSubscSymbol")
        message, kind = _of(msg, "MdSubscMsgType"), _of(msg, "MdSubscriptionType")
        if kind is None:
            if cb.on_msg is not None:
                cb.on_msg(self, self._topics.get(msg.get(*ISSUE_SYMBOL) or symbol or ""), request)
            return
        if not isinstance(symbol, str) or not symbol or message is None:
            missing = "the type of its message" if symbol else "a symbol"
            if cb.on_error is not None:
                cb.on_error(self, Status.NOT_FOUND, f"a request without {missing}", request)
            return
        topic = self._topics.get(symbol)
        if topic is None:
            if cb.on_new_request is not None:
                cb.on_new_request(self, symbol, kind, message, request)
            return
        call = cb.on_request
        if message == SubscriptionMsgType.REFRESH:
            self._answer_refresh(topic)
            call = cb.on_refresh
        if call is not None:
            call(self, topic, kind, message, request)

    @staticmethod
    def _answer_refresh(topic: PublishTopic) -> None:
        """For all subscribers of the topic."""
        msg = MamaMsg()
        msg.add(FieldType.U8, "MdMsgStatus", RESERVED["MdMsgStatus"].fid, MsgStatus.MISC)
        msg.add(FieldType.U8, "MdMsgType", RESERVED["MdMsgType"].fid, MsgType.REFRESH)
        try:
            topic.publisher.send(msg)
        except StatusError as error:
            log.warning("a refresh of %r is not answered: %s", topic.symbol, error)


def _of(msg: MamaMsg, name: str) -> Any:
    return msg.get(name, RESERVED[name].fid)
