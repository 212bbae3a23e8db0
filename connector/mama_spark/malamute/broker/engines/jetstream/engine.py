"""The engine whose stream is stored in NATS JetStream: Malamute clients on a replicated stream.

Messages are published to JetStream and delivered from there, so brokers that use one JetStream stream deliver each
other's messages. :mod:`.message_codec` defines how a Malamute message is stored.

*Publishing.* Batches are pipelined. SYNC is answered, with the server's sequences, when the server has acknowledged all
messages of the client. During an outage messages wait in memory, up to a limit; further ones are refused without being
sent.

*Reading.* Live cursors share one consumer. A cursor that is behind has its own consumer until it has caught up. *Log
queries* are answered from JetStream (:mod:`.stored_log`).

A message with a time to live is stored like any other, and ends by the limits of the stream; ``Mama-Expected-Sequence``
is compared by the server with the last message of the subject.

*A client's own messages* are not delivered to it. They are recognised by the client's reference, or, if another broker
published them, by the address under which a client of this engine has published.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.served_log import LogTail
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, of_stored
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer
from mama_spark.registry import publisher_bridge

from ..ack_tracker import PerClient
from ..base import Delivery
from ..log_queries import WRONG, answer
from ..stored import StoredStreamEngine, SubscriptionCursor
from .message_codec import ConsumedMessage, JetStreamMessage
from .publisher import ACK_TIMEOUT, AwaitedDeliveries, ClientOutcomes, PendingPublish, StreamPublisher, expect_last
from .settings import JetStreamSettings
from .stored_log import StoredLog

log = logging.getLogger(__name__)

#: Unacknowledged bytes at which a batch waits for acknowledgements, so that the broker slows the senders down.
MAX_UNACKNOWLEDGED = 8 * 1024 * 1024
#: Most seconds that a command waits for messages accepted before it, and SYNC for the deliveries before its answer.
BARRIER = 2.0
#: Most cursors that catch up at a time, each with a consumer and a few megabytes.
MAX_CATCH_UPS = 16
#: Seconds after which the consumer of a cursor without credit is closed.
IDLE_CATCH_UP = 5.0
#: Seconds between polls: while answers are awaited, while messages arrive, while idle.
POLL_ACKS, POLL_ACTIVE, POLL_IDLE = 0.002, 0.002, 0.01
ACTIVE = 1.0  #: seconds after a message in which more are expected
#: Seconds without progress after which the stream is checked.
CHECK_STREAM = 5.0
#: Seconds that :meth:`JetStreamEngine.close` waits for accepted messages.
CLOSE_TIMEOUT = 10.0


@dataclass(slots=True, eq=False)
class _CatchUp:
    """The consumer of one cursor that is behind, with ``messages`` polled and not yet delivered; ``last_used`` is the
    monotonic time when the cursor last had credit."""

    consumer: LogTail
    last_used: float
    messages: deque[ConsumedMessage] = field(default_factory=deque)


class JetStreamEngine(StoredStreamEngine[ConsumedMessage]):
    """A stream in JetStream (:class:`~mama_spark.malamute.broker.engines.jetstream.settings.JetStreamSettings`)."""

    settings_class = JetStreamSettings

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._options = JetStreamSettings.parse(name, self.settings)
        self._id = secrets.token_hex(8)
        self._log = StoredLog(name, self._options)
        self._publisher: StreamPublisher | None = None
        self._live: LogTail | None = None
        self._position = 0  # last sequence that live cursors received
        self._last_message = 0  # sequence of the last message received for live cursors
        self._catch_ups: dict[SubscriptionCursor, _CatchUp] = {}
        self._outcomes: PerClient[ClientOutcomes] = PerClient(ClientOutcomes)
        self._awaited = AwaitedDeliveries()
        self._number = 0
        self._last_delivery = 0.0
        self._last_check = 0.0

    @property
    def publisher(self) -> StreamPublisher:
        assert self._publisher is not None, "the engine was not started"
        return self._publisher

    def start(self) -> None:
        """Open the JetStream stream, which is created if necessary, and connect the publisher.

        :raises ConfigError: there is no such stream and none can be created, or it cannot be used
        :raises Unavailable: no server answers
        """
        state = self._log.open()
        options = self._options
        bridge = publisher_bridge(options.publishing(self._log.log_name))
        patience = ACK_TIMEOUT if options.on_silent_server == "publish" else math.inf
        self._publisher = StreamPublisher(bridge, self._log, self._id, options.buffer, patience)
        self._publisher.open()
        self._publisher.last = state.bounds.last

    def close(self) -> None:
        """Close; waits for accepted messages, but not for the end of an outage."""
        publisher = self._publisher
        if publisher is not None:
            end = time.monotonic() + CLOSE_TIMEOUT
            with suppress(Unavailable, ConfigError):
                while publisher.busy and not publisher.down and time.monotonic() < end:
                    publisher.pump(POLL_ACKS)
            if publisher.busy:
                log.error("stream %r ends before NATS has acknowledged all that was accepted", self.name)
            publisher.close()
        for catch_up in self._catch_ups.values():
            catch_up.consumer.close()
        if self._live is not None:
            self._live.close()
        self._log.close()

    def ask(self, query: LogQuery) -> tuple[LogQueryAnswer, list[list[bytes]]]:
        """An answer counts all that was accepted before the query. During an outage there is none."""
        number = query.number
        self._complete_accepted()
        if self.publisher.busy:
            reason = b"NATS has not acknowledged yet what was accepted before"
            return LogQueryAnswer(number, StatusCode.INTERNAL_ERROR, reason), []
        try:
            self._log.refresh()
        except Unavailable as e:
            return LogQueryAnswer(number, StatusCode.INTERNAL_ERROR, str(e).encode()), []
        return answer(self._log, query, (*WRONG, ConfigError))

    @classmethod
    def unopened(cls, name: bytes, settings: Mapping[str, Any]) -> str | None:
        """NATS is asked only for streams that clients have opened, and for those that the configuration names."""
        try:
            stored, _ = JetStreamSettings.parse(name, settings).names(name)
        except ConfigError as e:
            return str(e)
        return (
            "it is in NATS JetStream and no client has opened it here yet: name it in the configuration of the broker, "
            f"or read it there, with a url nats://host:port and stream {stored!r}"
        )

    def position(self) -> int:
        return self._position

    def _prepare_subscription(self, after: int | None) -> None:
        if self._live is None:
            # from the end of the stream, or from what is known of it during an outage
            last = None if self.publisher.down else self._log.last_sequence()
            self._position = self.publisher.last if last is None else last
            self._last_message = 0
            self._live = self._log.tail(self._position, "the live consumer")
        if after is not None and after > self._position:
            # the client has read further than this engine, unless the stream ends before that
            last = None if self.publisher.down else self._log.last_sequence()
            if last is not None:
                self._wait(lambda: self._position >= min(after, last))

    def _stop_replay(self, cursor: SubscriptionCursor) -> None:
        super()._stop_replay(cursor)
        catch_up = self._catch_ups.pop(cursor, None)
        if catch_up is not None:
            catch_up.consumer.close()

    def _last_subscriber_left(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None
            self._awaited.clear()

    def _complete_accepted(self) -> None:
        """Wait for a limited time until accepted messages are acknowledged and delivered; not during an outage."""
        self._wait(lambda: not self.publisher.busy and (self._live is None or not self._awaited))

    def _wait(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + BARRIER
        while not done() and not self.publisher.stalled_since and time.monotonic() < end:
            if not self._work(POLL_ACKS):
                time.sleep(POLL_ACKS / 4)

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        self._number += 1
        cursor = self._cursors.get(client)
        if cursor is not None:
            cursor.address = address
        origin = 0 if cursor is None else cursor.origin
        message = PendingPublish(self._number, client, origin, address, subject, content)
        if extension is not None:
            message.message_id, message.headers = extension.message_id, extension.headers
            self._outcomes.of(client).add(message)
            if message.headers:
                expect_last(message)
        if message.outcome is None:
            self.publisher.put(message)
        if self._cursors and message.outcome is None:
            self._awaited.add(message)

    def sync(self, client: Hashable) -> tuple[AckRun, ...] | Callable[[], tuple[AckRun, ...] | None]:
        outcomes = self._outcomes.pop(client) or ClientOutcomes()
        number, until = self._number, time.monotonic() + BARRIER

        def acks() -> tuple[AckRun, ...] | None:
            if not outcomes.settle():
                return None
            waits = self._awaited.any_up_to(number) and not self.publisher.stalled_since and time.monotonic() < until
            return None if waits else outcomes.runs.acks()

        return acks

    def flush(self) -> None:
        """Send; wait only if too many bytes are unacknowledged without an outage."""
        publisher = self.publisher
        publisher.pump(0.0)
        while publisher.waiting > MAX_UNACKNOWLEDGED and not publisher.stalled_since:
            publisher.pump(POLL_ACKS)

    def idle(self) -> float | None:
        delivered = self._work(POLL_ACKS)
        publisher = self.publisher
        now = time.monotonic()
        stalled = publisher.stalled_since
        if stalled and not publisher.down and now - max(stalled, self._last_check) > CHECK_STREAM:
            self._last_check = now
            self._log.last_sequence()  # raises if the stream was deleted
            publisher.report_stall(self.name, now - stalled, now)
        if delivered:
            return 0.0
        if publisher.busy:
            return POLL_ACKS if stalled else 0.0
        if not self._cursors:
            return None
        return POLL_ACTIVE if now - self._last_delivery < ACTIVE else POLL_IDLE

    def may_end(self) -> bool:
        return not self._cursors and not self.publisher.busy

    def _work(self, timeout: float) -> bool:
        self.publisher.pump(timeout)
        delivered = self._poll_live()
        self._awaited.drop(self._position)
        delivered = self._replay() or delivered
        if delivered:
            self._last_delivery = time.monotonic()
        return delivered

    def _poll_live(self) -> bool:
        if self._live is None:
            return False
        consumed = self._log.poll(self._live)
        for sequence, time_us, message in consumed:
            self._position = self._last_message = sequence
            if message is not None:
                self._deliver_message(sequence, time_us, message)
        return bool(consumed)

    def _deliver_message(self, sequence: int, time_us: int, message: JetStreamMessage) -> None:
        origin, content = message.origin, message.content
        if origin is not None and origin.engine == self._id:
            published = self._awaited.take(origin.number)
            if published is not None:
                content = published.content  # the frames as accepted
        receivers = self._subscriptions.receivers(message.subject)
        if receivers:
            sender = next((cursor for cursor in receivers if self._is_own(cursor, message)), None)
            fields = (message.sender, message.subject, content, message.message_id, message.headers)
            self._deliver_live(((sequence, sender, *fields),), time_us)

    def _is_own(self, cursor: SubscriptionCursor, message: JetStreamMessage) -> bool:
        """Whether the cursor's client sent the message, as far as the message has its sender."""
        if message.origin is not None and message.origin.engine == self._id:
            return message.origin.client == cursor.origin
        return bool(message.sender) and cursor.address == message.sender

    def _replay(self) -> bool:
        """Replay to the cursors in turn; True if messages were received."""
        delivered = False
        now = time.monotonic()
        for cursor in list(self._behind):
            catch_up = self._catch_ups.get(cursor)
            if catch_up is None:
                if not cursor.can_read or len(self._catch_ups) >= MAX_CATCH_UPS:
                    continue
                consumer = self._log.tail(cursor.position, "the consumer of a client that catches up")
                catch_up = self._catch_ups[cursor] = _CatchUp(consumer, now)
            delivered = self._take_turn(cursor, catch_up, now) or delivered
            if cursor.live:
                self._stop_replay(cursor)
            elif not cursor.can_read and now - catch_up.last_used > IDLE_CATCH_UP:
                self._stop_replay(cursor)
                self._behind[cursor] = None  # to the end
        return delivered

    def _take_turn(self, cursor: SubscriptionCursor, catch_up: _CatchUp, now: float) -> bool:
        if not cursor.can_read:
            return False
        catch_up.last_used = now
        messages = catch_up.messages
        if not messages:
            messages.extend(self._log.poll(catch_up.consumer))
        before = cursor.position
        last = self._position
        live_from = len(messages) and messages[-1].sequence > last  # later messages are delivered live
        self._replay_to(cursor, [one for one in messages if one.sequence <= last] if live_from else messages)
        while messages and messages[0].sequence <= cursor.position:
            messages.popleft()
        at_end = not messages and catch_up.consumer.caught_up and self._last_message <= cursor.position
        self._go_live_if_caught_up(cursor, exhausted=at_end)
        return cursor.position > before

    def _replayed(self, cursor: SubscriptionCursor, message: ConsumedMessage) -> Delivery | None:
        sequence, time_us, found = message
        if found is None or self._is_own(cursor, found):
            return None
        if not cursor.wants(sequence, self._subscriptions.matching(found.subject)):
            return None
        extension = of_stored(sequence, time_us, found.message_id, found.headers)
        return Delivery(cursor.client, found.sender, found.subject, found.content, extension)
