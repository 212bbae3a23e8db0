"""Subscriptions to streams: STREAM READ and CANCEL, and deliveries of engines to subscribed clients. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, Feature, read, write

from ..engines import Delivery
from ..engines.commands import CancelSubscriptions, CompilePattern, GiveCredit
from .client_state import ClientSession, Frames, PendingReply
from .connected_clients import OK, Connections, error_frames
from .deliveries import ClientDeliveries
from .states import CONNECTED
from .streams import AwaitedAnswer, Streams


class Subscriptions:
    """The patterns of all clients, each in :attr:`ClientSession.subscriptions`."""

    def __init__(self, clients: Connections, streams: Streams, deliveries: ClientDeliveries) -> None:
        self._clients = clients
        self._streams = streams
        self._deliveries = deliveries

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
                self._deliveries.balance(client)
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
        """The reply to READ of a pattern that the engine refused."""
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
                self._deliveries.balance(client)


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
