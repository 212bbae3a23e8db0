"""Subscriptions and deliveries: READ and CANCEL; sends messages when the client has credit and its socket accepts them,
and queues them until then; lends the credit of clients to engines; confirms mail and requests to their senders. Pure.

A delivery of an engine with flow control uses credit that was lent to the engine, so few can wait and none is dropped.
Others wait in the client's queue, with its limit and policy.
:class:`~mama_spark.malamute.protocol.credit.CreditAllocator` decides who is lent what.
"""

from __future__ import annotations

from collections.abc import Iterable

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, Feature, read, write

from ..engines import Delivery
from ..engines.commands import CancelSubscriptions, CompilePattern, GiveCredit, RecallCredit
from .clients import OK, ClientSession, Connections, Frames, PendingReply, error_frames, frames_size
from .queues import MailboxMessage
from .settings import Overflow
from .states import CONNECTED, SessionEvent
from .streams import AwaitedAnswer, Streams


class ClientDeliveries:
    """Subscribes clients to streams, and delivers messages to them within their credit. ``rotating`` clients have a
    stream that waits for shares of others; some may need no rotation any more."""

    def __init__(self, clients: Connections, streams: Streams) -> None:
        self.rotating: dict[ClientSession, None] = {}
        self._clients = clients
        self._streams = streams

    def read(self, client: ClientSession, command: commands.StreamRead) -> None:
        stream, pattern = command.stream, command.pattern
        new = pattern not in client.subscriptions.get(stream, ())
        if not new and not self._clients.answers_repeat(client):
            return
        if new and sum(map(len, client.subscriptions.values())) >= self._clients.settings.patterns:
            self._clients.fail(client, b"too many subscriptions")
            return
        if not self._streams.open(client, stream):
            return
        after = read(command.trailing).after if Feature.SEQUENCE in client.features else None
        order = CompilePattern(client, pattern, after)
        self._streams.reply_later(client, stream, order, PendingReply(), pattern if new else None)
        if stream not in client.subscriptions:
            client.subscriptions[stream] = set()
            if self._streams[stream].flow_control:  # the engine delivers nothing until credit is lent
                self._streams.put(stream, GiveCredit(client, 0))
                client.allocator.add_stream(stream)
                self.balance(client)
        client.subscriptions[stream].add(pattern)

    def cancel(self, client: ClientSession, command: commands.StreamCancel) -> None:
        if client.subscriptions.pop(command.stream, None) is None:
            self._clients.reply(client, OK)  # no subscription: the reference creates the stream here, ours does not
            return
        self._streams.reply_later(client, command.stream, CancelSubscriptions(client), PendingReply())
        client.allocator.cancel(command.stream)
        self._clients.events.record("UNSUBSCRIBED", client, command.stream)

    def accepted(self, stream: bytes, awaited: AwaitedAnswer, position: int | None) -> Frames:
        """The reply to READ of a new pattern that the engine has compiled."""
        client, pattern = awaited.client, awaited.pattern
        if client.connected:
            self._clients.events.record("SUBSCRIBED", client, stream, pattern or b"")
        if position is not None and Feature.SEQUENCE in client.features:
            return commands.encode(commands.Ok(trailing=write(Extension(sequence=position))))
        return OK

    def refused(self, stream: bytes, awaited: AwaitedAnswer, reason: bytes) -> Frames:
        client, pattern = awaited.client, awaited.pattern
        patterns = client.subscriptions.get(stream)
        if patterns is not None and pattern is not None:
            patterns.discard(pattern)
            if not patterns:
                del client.subscriptions[stream]
                client.allocator.cancel(stream)
                self._streams.put_silent([stream], CancelSubscriptions(client), client)
        self._clients.events.record("REFUSED", client, stream, reason)
        return error_frames(StatusCode.FAILED, reason)

    def delivered(self, stream: bytes, deliveries: Iterable[Delivery]) -> None:
        """Send deliveries of the engine of a stream to its clients (ML-17).

        :raises BadFrame: a delivery does not fit in a command
        """
        flow_control = stream in self._streams and self._streams[stream].flow_control
        deliver, deliver_lent = self.deliver, self.deliver_lent
        receivers: dict[ClientSession, None] = {}
        heads: dict[tuple[bytes, bytes], bytes] = {}  # cache: (sender, subject) -> begin of the frame
        for client, sender, subject, content, extension in deliveries:
            if isinstance(client, ClientSession) and client.state is CONNECTED:
                frame = heads.get((sender, subject))
                if frame is None:
                    try:
                        frame = heads[sender, subject] = commands.deliver_frame(stream, sender, subject)
                    except IndexError:
                        raise BadFrame(f"a delivery on a subject of {len(subject)} bytes") from None
                if extension is not None and client.features:
                    frame += write(_for_client(extension, client.features))
                if flow_control:
                    deliver_lent(client, stream, [frame, *content])
                    receivers[client] = None
                else:
                    deliver(client, [frame, *content])
        for client in receivers:
            if client.allocator.needs_refill(stream):
                self.balance(client)

    def deliver(self, client: ClientSession, frames: Frames, message: MailboxMessage | None = None) -> bool:
        """Send or queue a delivery that is not covered by lent credit; False if it was dropped. ``message`` is the
        mailbox or service message, None for a delivery of a stream."""
        if client.state is not CONNECTED:
            return False
        if not client.blocked and not len(client.queue) and self._may_deliver(client):
            self._clients.send(client, self._counted(client, frames, message))
            return True
        lost = client.queue.put((frames, message), frames_size(frames))
        self._clients.counters.lost_deliveries += len(lost)
        for _, other in lost:
            if other is not None and other is not message:
                self.report(other, StatusCode.FAILED, b"no room")
        if lost and client.queue.overflow is Overflow.DISCONNECT:
            self._clients.drop(client, SessionEvent.QUEUE_FULL)
        self.balance(client)
        return not any(one is frames for one, _ in lost)

    def deliver_lent(self, client: ClientSession, stream: bytes, frames: Frames) -> None:
        """Send or queue a delivery for which credit was lent to the engine; it is never dropped."""
        size = frames_size(frames)
        if not client.allocator.use(stream, size):
            self.deliver(client, frames)
        elif client.blocked or client.lent_deliveries.size or not client.credit.use():
            client.lent_deliveries.put(frames, size)
        else:
            self._clients.send(client, frames)

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
            self._clients.send(client, frames)
        self.balance(client)

    def give_credit(self, client: ClientSession, command: commands.Credit) -> None:
        client.credit.give(command.amount)
        self.resume(client)

    @staticmethod
    def _may_deliver(client: ClientSession) -> bool:
        """Whether the client has credit that is not lent to an engine."""
        return not len(client.lent_deliveries) and client.allocator.leaves_credit(client.credit)

    def _counted(self, client: ClientSession, frames: Frames, message: MailboxMessage | None) -> Frames:
        client.credit.use()
        if message is None:
            return frames
        if message.tracker and Feature.CONFIRM in client.features:
            for forgotten in client.unconfirmed.put(message, message.cost):
                self.report(forgotten, StatusCode.FAILED, b"not confirmed")
        else:  # the receiver cannot confirm
            self.report(message, StatusCode.SUCCESS, b"")
        return frames

    def balance(self, client: ClientSession) -> None:
        """Lend free credit; recall unused credit if more is needed."""
        allocator = client.allocator
        if client.blocked or not client.connected or not len(allocator):
            return
        free = allocator.free(client.credit, len(client.lent_deliveries))
        for stream, amount in allocator.lend(free):
            self._streams.put(stream, GiveCredit(client, amount))
            free -= amount
        if free <= 0:
            self._recall(client, allocator.recall(len(client.queue) > 0, self._clients.now))
            if allocator.rotation_due is not None:
                self.rotating[client] = None

    def rotate(self, now: float) -> None:
        """Recall unused shares for streams that waited for one at least the rotation interval."""
        for client in list(self.rotating):
            due = client.allocator.rotation_due
            if client.connected and due is not None and due > now:
                continue
            del self.rotating[client]
            if client.connected and due is not None:
                self._recall(client, client.allocator.rotate())

    def next_rotation(self) -> float | None:
        times = (client.allocator.rotation_due for client in self.rotating)
        return min((time for time in times if time is not None), default=None)

    def _recall(self, client: ClientSession, streams: Iterable[bytes]) -> None:
        for stream in streams:
            self._streams.put(stream, RecallCredit(client))

    def confirm(self, receiver: ClientSession, command: commands.Confirm) -> None:
        """Process CONFIRM of the receiver; unknown trackers are ignored."""
        message = next((one for one in receiver.unconfirmed if one.tracker == command.tracker), None)
        if message is not None:
            receiver.unconfirmed.remove({id(message)})
            self.report(message, command.code, command.reason)

    def report(self, message: MailboxMessage, code: int, reason: bytes) -> None:
        """Report the outcome of a message to its sender, if that is connected and requested it."""
        sender = message.sender
        if not message.tracker or not isinstance(sender, ClientSession) or not sender.connected:
            return
        if Feature.CONFIRM in sender.features:
            self._clients.emit(sender, commands.encode(commands.Confirm(message.tracker, code, reason)))


def _for_client(extension: Extension, features: Feature) -> Extension:
    numbers = Feature.SEQUENCE in features
    headers = Feature.HEADERS in features
    return Extension(
        sequence=extension.sequence if numbers else None,
        time=extension.time if numbers else None,
        message_id=extension.message_id if headers else b"",
        headers=extension.headers if headers else (),
    )
