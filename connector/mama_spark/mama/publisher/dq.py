"""Publishers that number their messages: ``mamaDQPublisher`` and its manager.

Consumers detect gaps by the number (MdSeqNum) and the sender (MamaSenderId). The behaviour is OpenMAMA's, for example:
the first update of a publisher whose number is 1 has number 2.

The manager receives requests at ``_MD.<source>``. Their fields are the symbol (MdSubscSymbol), the type of the message
(MdSubscMsgType) and the type of the subscription (MdSubscriptionType).
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ..inbox import Request, RequestListener
from ..messages.msg import FieldType, MamaMsg, MamaTime, reserved_field
from ..messages.sequence_numbers import HIGHEST, SILENT, next_number, uses_up
from ..messages.status import ISSUE_SYMBOL, RESERVED, MsgStatus, MsgType, Status, StatusError, SubscriptionMsgType
from ..states import PublisherState
from ..topics import SUBSCRIPTION_ROOT, join_topic
from .bridge_publisher import PublisherCallbacks
from .publisher import Publisher

if TYPE_CHECKING:
    from ..inbox import Inbox
    from ..queue import Queue
    from ..transport import Transport


class DQPublisher:
    """A :class:`Publisher` that sets MdMsgStatus, MdSeqNum, MamaSenderId and optionally MamaSendTime in each message.

    :ivar publisher: the publisher that sends
    """

    def __init__(self) -> None:
        self.publisher: Publisher
        self._status = int(MsgStatus.OK)
        self._number = 1
        self._sender = int.from_bytes(secrets.token_bytes(4)) << 32 | os.getpid()
        self._send_time = False

    @classmethod
    def create(
        cls, transport: Transport | None, symbol: str | None = None, source: str | None = None, root: str | None = None
    ) -> Self:
        """``mamaDQPublisher_create``; errors as :meth:`Publisher.create`."""
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
        """As :meth:`Publisher.create_with_callbacks` (PE-37); the callbacks receive :attr:`publisher`."""
        made = cls()
        made.publisher = Publisher.create_with_callbacks(transport, queue, symbol, source, root, callbacks, closure)
        return made

    # --- stamped values --------------------------------------------------------------------------------------

    @property
    def status(self) -> int:
        """Status of the data, a :class:`MsgStatus`; initially OK."""
        return self._status

    def set_status(self, status: MsgStatus) -> None:
        self._status = int(status)

    @property
    def seq_num(self) -> int:
        """The number of the last counted message."""
        return self._number

    def set_seq_num(self, number: int) -> None:
        """The next counted message gets ``number + 1``; with 0, messages are stamped with neither number nor status.

        :raises StatusError: INVALID_ARG if it is no U32
        """
        if not 0 <= number <= HIGHEST:
            raise StatusError(Status.INVALID_ARG, f"a sequence number is from 0 to {HIGHEST}, got {number}")
        self._number = number

    @property
    def sender_id(self) -> int:
        """Identifies this publisher among those of the topic; initially random. Unsigned, 64 bits; 0 = not stamped."""
        return self._sender

    def set_sender_id(self, sender: int) -> None:
        """:raises StatusError: INVALID_ARG if it is no U64"""
        if not 0 <= sender < 1 << 64:
            raise StatusError(Status.INVALID_ARG, f"a sender id is from 0 to 2^64 - 1, got {sender}")
        self._sender = sender

    def enable_send_time(self, enable: bool) -> None:
        """Switch on or off that each message is stamped with the time of its send."""
        self._send_time = enable

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, msg: MamaMsg | None) -> None:
        """Stamp and send; errors as :meth:`Publisher.send`. A message that was not sent uses no number."""
        self._stamped(msg, self.publisher.send)

    def send_reply(self, request: Request | None, reply: MamaMsg | None) -> None:
        """Stamp with the status and the current number, and reply; errors as :meth:`Publisher.send_reply_to_inbox`.
        A reply is not counted, whatever its type."""
        self._stamped(reply, lambda msg: self.publisher.send_reply_to_inbox(request, msg), reply=True)

    def send_from_inbox(self, inbox: Inbox | None, msg: MamaMsg | None) -> None:
        """Stamp and send a request; errors as :meth:`Publisher.send_from_inbox`."""
        self._stamped(msg, lambda stamped: self.publisher.send_from_inbox(inbox, stamped))

    def _stamped(self, msg: MamaMsg | None, send: Callable[[MamaMsg], None], *, reply: bool = False) -> None:
        if msg is None:
            raise StatusError(Status.NULL_ARG, "there is no message to send")

        def stamp_and_send() -> None:
            before = self._number
            self._stamp(msg, reply)
            try:
                send(msg)
            except BaseException:
                self._number = before
                raise

        # on the transport's thread, so that numbers have the order of sends
        self.publisher.transport.loop.call(stamp_and_send)

    def _stamp(self, msg: MamaMsg, reply: bool) -> None:
        kind = msg.reserved("MdMsgType", int(MsgType.UPDATE))
        if self._number:
            if reply or kind not in SILENT:
                _put(msg, "MdMsgStatus", self._status)
                if not reply and uses_up(kind):
                    self._number = next_number(self._number)
            _put(msg, "MdSeqNum", self._number)
        if self._sender:
            _put(msg, "MamaSenderId", self._sender)
        if self._send_time:
            # Time of day: stamps messages.
            _put(msg, "MamaSendTime", MamaTime.from_us(time.time_ns() // 1000))

    # --- life ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> PublisherState:
        return self.publisher.state

    def destroy(self) -> None:
        """See :meth:`Publisher.destroy`."""
        self.publisher.destroy()


def _put(msg: MamaMsg, name: str, value: Any) -> None:
    reserved = RESERVED[name]
    kind = FieldType.U8 if name == "MdMsgStatus" else reserved.type  # as OpenMAMA writes it
    msg.update(kind, reserved.name, reserved.fid, value)


logger = logging.getLogger("mama_spark")


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
        symbol, message, kind = map(msg.reserved, ("MdSubscSymbol", "MdSubscMsgType", "MdSubscriptionType"))
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
        stamps = (("MdMsgStatus", int(MsgStatus.MISC)), ("MdMsgType", int(MsgType.REFRESH)))
        msg = MamaMsg([reserved_field(name, FieldType.U8, value) for name, value in stamps])
        try:
            topic.publisher.send(msg)
        except StatusError as error:
            logger.warning("a refresh of %r is not answered: %s", topic.symbol, error)
