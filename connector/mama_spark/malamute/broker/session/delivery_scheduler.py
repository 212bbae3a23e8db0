"""Delivers messages when the client has credit and its socket accepts them; queues them until then. Pure.

A delivery of an engine with flow control uses credit that was lent to the engine, so few of them can wait, and none is
dropped. Other deliveries wait in the client's queue, with its limit and policy.
"""

from __future__ import annotations

from mama_spark.malamute.protocol.commands import StatusCode

from .byte_queue import Overflow
from .client_output import ClientOutput, DropClient, frames_size
from .client_session import ClientSession, Frames
from .counters import SessionCounters
from .engine_credit import EngineCredit
from .mailboxes.mailbox_receipts import MailboxReceipts
from .mailboxes.mailbox_store import MailboxMessage
from .states import CONNECTED, SessionEvent


class DeliveryScheduler:
    """:param drop: called for a client whose queue is full, if that is the policy"""

    def __init__(
        self,
        output: ClientOutput,
        lender: EngineCredit,
        receipts: MailboxReceipts,
        counters: SessionCounters,
        drop: DropClient,
    ) -> None:
        self._output = output
        self._lender = lender
        self._receipts = receipts
        self._counters = counters
        self._drop = drop

    def deliver(self, client: ClientSession, frames: Frames, message: MailboxMessage | None = None) -> bool:
        """Send or queue a delivery that is not covered by lent credit; False if it was dropped.

        :param message: the mailbox or service message; None for a delivery of a stream
        """
        if client.state is not CONNECTED:
            return False
        if not client.blocked and not len(client.queue) and self._may_deliver(client):
            self._output.send(client, self._counted(client, frames, message))
            return True
        lost = client.queue.put((frames, message), frames_size(frames))
        self._counters.lost_deliveries += len(lost)
        for _, other in lost:
            if other is not None and other is not message:
                self._receipts.report(other, StatusCode.FAILED, b"no room")
        if lost and client.queue.overflow is Overflow.DISCONNECT:
            self._drop(client, SessionEvent.QUEUE_FULL)
        self._lender.balance(client)
        return not any(one is frames for one, _ in lost)

    def deliver_lent(self, client: ClientSession, stream: bytes, frames: Frames) -> None:
        """Send or queue a delivery for which credit was lent to the engine; it is never dropped."""
        size = frames_size(frames)
        if not client.allocator.use(stream, size):
            self.deliver(client, frames)
        elif client.blocked or client.lent_deliveries.size or not client.credit.use():
            client.lent_deliveries.put(frames, size)
        else:
            self._output.send(client, frames)

    def give_credit(self, client: ClientSession, amount: int) -> None:
        """Add credit from the client, a number of deliveries."""
        client.credit.give(amount)
        self.resume(client)

    def credit_returned(self, client: ClientSession, stream: bytes, amount: int) -> None:
        """Take back lent credit that the engine returned."""
        client.allocator.returned(stream, amount)
        self.resume(client)

    def stream_cancelled(self, client: ClientSession, stream: bytes) -> None:
        """To be called when the engine has answered CANCEL."""
        client.allocator.cancelled(stream)
        self.resume(client)

    def stream_lost(self, client: ClientSession, stream: bytes) -> None:
        client.allocator.remove(stream)
        self.resume(client)

    def unblock(self, client: ClientSession) -> None:
        """To be called when the socket accepted all frames from :meth:`next_for`."""
        client.blocked = False
        self.resume(client)

    def next_for(self, client: ClientSession) -> Frames | None:
        """Take the oldest queued frames of a client whose socket may accept them; None if nothing may be sent now."""
        if len(client.replies):
            return client.replies.get()
        if len(client.lent_deliveries) and client.credit.use():
            return client.lent_deliveries.get()
        if len(client.queue) and self._may_deliver(client):
            return self._counted(client, *client.queue.get())
        return None

    def resume(self, client: ClientSession) -> None:
        """Send queued deliveries as far as credit allows, and lend free credit."""
        while not client.blocked and (frames := self.next_for(client)) is not None:
            self._output.send(client, frames)
        self._lender.balance(client)

    @staticmethod
    def _may_deliver(client: ClientSession) -> bool:
        """Whether the client has credit that is not lent to an engine."""
        return not len(client.lent_deliveries) and client.allocator.leaves_credit(client.credit)

    def _counted(self, client: ClientSession, frames: Frames, message: MailboxMessage | None) -> Frames:
        client.credit.use()
        if message is not None:
            self._receipts.delivered(client, message)
        return frames
