"""Publisher that numbers its messages: ``mamaDQPublisher``.

Consumers detect gaps by number (MdSeqNum) and sender (MamaSenderId). The behaviour is OpenMAMA's: the first update of a
publisher whose number is 1 has number 2.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from ..messages.msg import FieldType, MamaMsg, MamaTime
from ..messages.sequence_numbers import HIGHEST, SILENT, UNCOUNTED, next_number
from ..messages.status import RESERVED, MsgStatus, MsgType, Status, StatusError
from ..states import PublisherState
from .bridge_publisher import PublisherCallbacks
from .publisher import Publisher

if TYPE_CHECKING:
    from ..inbox import Inbox, Request
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
        """A publisher of :meth:`Publisher.create_with_callbacks` (PE-37); the callbacks receive :attr:`publisher`."""
        made = cls()
        made.publisher = Publisher.create_with_callbacks(transport, queue, symbol, source, root, callbacks, closure)
        return made

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
        """Set :attr:`sender_id`.

        :raises StatusError: INVALID_ARG if it is no U64
        """
        if not 0 <= sender < 1 << 64:
            raise StatusError(Status.INVALID_ARG, f"a sender id is from 0 to 2^64 - 1, got {sender}")
        self._sender = sender

    def enable_send_time(self, enable: bool) -> None:
        """Switch on or off that each message is stamped with the time of its send."""
        self._send_time = enable

    def send(self, msg: MamaMsg | None) -> None:
        """Stamp and send; errors as :meth:`Publisher.send`. A message that was not sent uses no number."""
        self._stamped(msg, self.publisher.send)

    def send_reply(self, request: Request | None, reply: MamaMsg | None) -> None:
        """Stamp with status and current number, uncounted, and reply; errors as
        :meth:`Publisher.send_reply_to_inbox`."""
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
                if not reply and kind not in UNCOUNTED:
                    self._number = next_number(self._number)
            _put(msg, "MdSeqNum", self._number)
        if self._sender:
            _put(msg, "MamaSenderId", self._sender)
        if self._send_time:
            # Time of day: stamps messages.
            _put(msg, "MamaSendTime", MamaTime.from_us(time.time_ns() // 1000))

    @property
    def state(self) -> PublisherState:
        return self.publisher.state

    def destroy(self) -> None:
        self.publisher.destroy()


def _put(msg: MamaMsg, name: str, value: Any) -> None:
    reserved = RESERVED[name]
    kind = FieldType.U8 if name == "MdMsgStatus" else reserved.type  # as OpenMAMA writes it
    msg.update(kind, reserved.name, reserved.fid, value)
