"""Makes replies to clients from the answers of engines to TRAFFIC, COMPILE, CANCEL and SYNC. Pure."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, write

from ...engines.commands import CancelSubscriptions
from ..broker_events import EventRecorder
from ..client_output import OK, ClientOutput, error_frames
from ..client_session import ClientSession, Frames, PendingReply
from ..delivery_scheduler import DeliveryScheduler
from .engine_command_queue import AwaitedAnswer, EngineCommandQueue
from .ping_handler import PingHandler
from .publish_handler import BROKER
from .publish_windows import PublishWindows
from .stream_table import StreamTable

_OK_STORED = commands.encode(commands.Ok(trailing=write(Extension(stored=1))))


class EngineAnswerHandler:
    """Completes the replies that wait for engines."""

    def __init__(
        self,
        streams: StreamTable,
        engines: EngineCommandQueue,
        output: ClientOutput,
        deliveries: DeliveryScheduler,
        pings: PingHandler,
        credit: PublishWindows,
        events: EventRecorder,
    ) -> None:
        self._streams = streams
        self._engines = engines
        self._output = output
        self._deliveries = deliveries
        self._pings = pings
        self._credit = credit
        self._events = events

    def opened(self, stream: bytes, stored: bool) -> None:
        """To be called when TRAFFIC was sent to a new engine ahead of queued commands; its answer is for no client."""
        if stored:
            self._streams.stored.add(stream)
        self._engines.expect_first(stream, AwaitedAnswer(BROKER, PendingReply(silent=True)))

    def done(self, stream: bytes, error: str | None, outcomes: tuple[AckRun, ...], position: int | None) -> None:
        """Process the answer of an engine to its oldest unanswered command."""
        awaited = self._engines.answered(stream)
        client, reply = awaited.client, awaited.reply
        self._streams.started(stream)
        if awaited.cancels and client.connected:
            self._deliveries.stream_cancelled(client, stream)
        if reply.frames is not None:
            return  # PING was answered already, because another of its streams was lost
        if reply.syncs:
            reply.outcomes[stream] = outcomes
            reply.syncs -= 1
            if reply.syncs:
                return
            reply.frames = self._pings.pong(client, reply)
        elif error is None:
            reply.frames = self._accepted(stream, awaited, position)
        else:
            reply.frames = self._refused(stream, awaited, encoded(error))
        if not reply.silent:
            self._output.advance(client)

    def lost(self, stream: bytes, reason: bytes) -> None:
        """Process the failure of an engine: ERROR 502 to all clients that wait for it."""
        for client, reply, *_ in self._engines.discard(stream):
            reply.frames = error_frames(StatusCode.INTERNAL_ERROR, reason)
            reply.syncs = 0
            self._credit.lost(client, reply.send_octets)
            self._output.advance(client)

    def _accepted(self, stream: bytes, awaited: AwaitedAnswer, position: int | None) -> Frames:
        client, reply, pattern, _ = awaited
        if pattern is None:
            says_stored = reply.for_write and stream in self._streams.stored and Feature.ACKS in client.features
            return _OK_STORED if says_stored else OK
        if client.connected:
            self._events.record("SUBSCRIBED", client, stream, pattern)
        if position is not None and Feature.SEQUENCE in client.features:
            return commands.encode(commands.Ok(trailing=write(Extension(sequence=position))))
        return OK

    def _refused(self, stream: bytes, awaited: AwaitedAnswer, reason: bytes) -> Frames:
        client, pattern = awaited.client, awaited.pattern
        patterns = client.subscriptions.get(stream)
        if patterns is not None and pattern is not None:
            patterns.discard(pattern)
            if not patterns:
                self._end_subscriptions(client, stream)
        self._events.record("REFUSED", client, stream, reason)
        return error_frames(StatusCode.FAILED, reason)

    def _end_subscriptions(self, client: ClientSession, stream: bytes) -> None:
        del client.subscriptions[stream]
        client.allocator.cancel(stream)
        self._engines.put_silent([stream], CancelSubscriptions(client), client)


def encoded(reason: str) -> bytes:
    """The text of an engine, which may contain surrogates, as octets."""
    return reason.encode("utf-8", "backslashreplace")
