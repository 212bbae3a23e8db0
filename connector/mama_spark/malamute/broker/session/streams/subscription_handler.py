"""Handles STREAM READ and CANCEL, and deliveries of engines to subscribed clients. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame
from mama_spark.malamute.protocol.extensions import Extension, Feature, read, write

from ...engines import Delivery
from ...engines.commands import CancelSubscriptions, CompilePattern
from ..broker_events import EventRecorder
from ..client_output import OK, ClientOutput
from ..client_session import ClientSession, PendingReply
from ..delivery_scheduler import DeliveryScheduler
from ..engine_credit import EngineCredit
from ..repeat_limiter import RepeatLimiter
from ..states import CONNECTED
from .stream_opener import StreamOpener
from .stream_table import StreamTable


class SubscriptionHandler:
    """:param most: limit of subscriptions of one client"""

    def __init__(
        self,
        most: int,
        streams: StreamTable,
        opener: StreamOpener,
        output: ClientOutput,
        deliveries: DeliveryScheduler,
        lender: EngineCredit,
        repeats: RepeatLimiter,
        events: EventRecorder,
    ) -> None:
        self._most = most
        self._streams = streams
        self._opener = opener
        self._output = output
        self._deliveries = deliveries
        self._lender = lender
        self._repeats = repeats
        self._events = events

    def read(self, client: ClientSession, command: commands.StreamRead, now: float) -> None:
        new = command.pattern not in client.subscriptions.get(command.stream, ())
        if not new and not self._repeats.allows(client, now):
            return
        if new and sum(map(len, client.subscriptions.values())) >= self._most:
            self._output.fail(client, b"too many subscriptions")
            return
        if not self._opener.open(client, command.stream):
            return
        after = read(command.trailing).after if Feature.SEQUENCE in client.features else None
        order = CompilePattern(client, command.pattern, after)
        self._opener.reply_later(client, command.stream, order, PendingReply(), command.pattern if new else None)
        if command.stream not in client.subscriptions:
            client.subscriptions[command.stream] = set()
            if command.stream in self._streams.with_flow_control:
                self._lender.add_stream(client, command.stream)
        client.subscriptions[command.stream].add(command.pattern)

    def cancel(self, client: ClientSession, command: commands.StreamCancel, now: float) -> None:
        if client.subscriptions.pop(command.stream, None) is None:
            self._output.reply(client, OK)  # no subscription: the reference creates the stream here, ours does not
            return
        self._opener.reply_later(client, command.stream, CancelSubscriptions(client), PendingReply())
        client.allocator.cancel(command.stream)
        self._events.record("UNSUBSCRIBED", client, command.stream)

    def delivered(self, stream: bytes, deliveries: Iterable[Delivery]) -> None:
        """Send deliveries of the engine of a stream to its clients (ML-17).

        :raises BadFrame: a delivery does not fit in a command
        """
        flow_control = stream in self._streams.with_flow_control
        deliver, deliver_lent = self._deliveries.deliver, self._deliveries.deliver_lent
        receivers: dict[ClientSession, None] = {}
        heads: dict[tuple[bytes, bytes], bytes] = {}  # cache: (sender, subject) -> begin of the frame
        for client, sender, subject, content, extension in deliveries:
            if isinstance(client, ClientSession) and client.state is CONNECTED:
                frame = heads.get((sender, subject))
                if frame is None:
                    try:
                        frame = heads[sender, subject] = commands.deliver_frame(stream, sender, subject)
                    except IndexError:
                        raise BadFrame(f"a delivery on a subject of {len(subject)} octets") from None
                if extension is not None and client.features:
                    frame += write(_for_client(extension, client.features))
                if flow_control:
                    deliver_lent(client, stream, [frame, *content])
                    receivers[client] = None
                else:
                    deliver(client, [frame, *content])
        for client in receivers:
            if client.allocator.needs_refill(stream):
                self._lender.balance(client)


def _for_client(extension: Extension, features: Feature) -> Extension:
    """The fields of the extension that the client's features allow."""
    numbers = Feature.SEQUENCE in features
    headers = Feature.HEADERS in features
    return Extension(
        sequence=extension.sequence if numbers else None,
        time=extension.time if numbers else None,
        message_id=extension.message_id if headers else b"",
        headers=extension.headers if headers else (),
    )
