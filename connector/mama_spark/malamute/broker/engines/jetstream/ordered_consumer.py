"""Reads a JetStream stream from a position on, with a consumer that is replaced whenever it fails (NATS ADR-17).

:class:`OrderedConsumer` is polled and never waits: consumers are created and checked on the event loop of the
connections. Any failure (a lost connection or server, a gap in its sequence, silence) ends a consumer, and another one
begins after the last message returned, as in the ordered consumers of NATS clients.
"""

from __future__ import annotations

import contextlib
import logging
import time
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from nats.aio.msg import Msg
from nats.nuid import NUID

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.nats.connection.connection import Connection
from mama_spark.nats.jetstream.api import ApiError
from mama_spark.nats.jetstream.consumers import TOO_MANY
from mama_spark.nats.protocol.parser import ProtocolError
from mama_spark.nats.protocol.records import DeliveryBuffer, columns, read_reply
from mama_spark.nats.read.pull_subscription import BYTES, ROWS, PullSubscription, SubscriptionBroken
from mama_spark.nats.read.range_reader import KEPT
from mama_spark.nats.subjects import CONSUMER_PREFIX

from .message_codec import JetStreamMessage, Unreadable, decode
from .stream_reader import JetStreamReader, request

log = logging.getLogger(__name__)

SILENCE = 2.0  #: seconds without a message after which the consumer is checked
#: Delays between attempts to create a consumer.
RECREATE = Backoff(0.05, 1.0)
_UNLIMITED = 1_000_000  #: messages of one pull request: more than fit into its octets


class ConsumedMessage(NamedTuple):
    """One message of the stream.

    :ivar time: microseconds since the epoch
    :ivar message: None = Malamute cannot represent it
    """

    sequence: int
    time: int
    message: JetStreamMessage | None


class _PolledSubscription(PullSubscription):
    """An endless subscription for a reader that does not wait."""

    _requested = False  #: the event loop was asked to flush its buffer

    def poll(self) -> DeliveryBuffer | None:
        """The received messages; see :meth:`next`. Some may be returned by a later call, because they are buffered."""
        with self._ready:
            if not self._buffers and self._error is None:
                hand_over = not self._requested and bool(self._parser.buffer)
                self._requested = self._requested or hand_over
                if hand_over:
                    self.connection.loop.soon(self._flush_buffer)
                return None
        return self.next(0)

    def _flush_buffer(self) -> None:
        self._requested = False
        super()._flush_buffer()

    def _records_added(self) -> None:
        buffer = self._parser.buffer
        caught_up = buffer.tails[-1].split(b".")[3] == b"0"
        if caught_up or buffer.size > BYTES or len(buffer) >= ROWS:
            self._flush_buffer()

    async def _on_message(self, msg: Msg) -> None:
        """Receive by public calls of nats-py, which keep one value per header; engines write only one."""
        reply = read_reply(msg.reply.encode()) if msg.reply else None
        if reply is None:
            await super()._on_message(msg)
            return
        block = None
        if msg.headers is not None:
            text = "".join(f"{name}: {value}\r\n" for name, value in msg.headers.items())
            block = f"NATS/1.0\r\n{text}\r\n".encode()
        self._parser.buffer.add(msg.subject.encode(), reply.tail, msg.data, block)
        self._records_added()


class _Consumer(NamedTuple):
    """A consumer at the server, and the subscription to it.

    :ivar pending: messages behind it when it was created
    :ivar first: first sequence of the stream at that time
    """

    name: str
    subscription: _PolledSubscription
    pending: int
    first: int


class OrderedConsumer:
    """Reads messages after a position. Not thread-safe.

    :param after: the sequence before the first message
    :param label: name for log texts
    :ivar position: sequence of the last message returned
    :ivar caught_up: the current consumer has reached the end of the stream at least once
    """

    def __init__(self, stream: JetStreamReader, after: int, label: str) -> None:
        self.position, self.caught_up = after, False
        self._stream, self._label = stream, label
        self._creation: Future[_Consumer] | None = None
        self._consumer: _Consumer | None = None
        self._check: Future[dict[str, Any]] | None = None
        self._expected = 1  # consumer sequence of the next delivery
        self._first_try = True
        self._delays = RECREATE.delays()
        self._retry_at = 0.0
        self._last_delivery = 0.0
        self._last_check = 0.0

    def __repr__(self) -> str:
        state = "open" if self._consumer else "opening" if self._creation else "closed"
        return f"<OrderedConsumer {self._label} at {self.position}, {state}>"

    def poll(self) -> list[ConsumedMessage]:
        """The received messages.

        :raises ConfigError: the stream was deleted, or cannot be read
        """
        now = time.monotonic()
        if self._consumer is None:
            self._consumer = self._open(now)
        if self._consumer is None:
            return []
        try:
            buffer = self._consumer.subscription.poll()
            if buffer is None:
                self._check_consumer(self._consumer, now)
                return []
            batch = columns(buffer, headers=False)
        except (SubscriptionBroken, ProtocolError) as e:
            self._fail(e)
            return []
        if batch.first != self._expected:
            self._fail(SubscriptionBroken(f"delivery {batch.first} came instead of {self._expected}"))
            return []
        self._expected += len(buffer)
        self._last_delivery, self._first_try = now, True
        self._delays.reset()
        records = batch.records
        self.position = int(records.sequences[-1])
        self.caught_up = batch.pending == 0
        cut = len(self._stream.prefix) + 1
        blocks = buffer.blocks or [None] * len(buffer)
        parts = zip(buffer.subjects, buffer.payloads, blocks, strict=True)
        messages = [self._decode(subject[cut:], bytes(payload), block) for subject, payload, block in parts]
        return [
            ConsumedMessage(*one)
            for one in zip(records.sequences.tolist(), records.times.tolist(), messages, strict=True)
        ]

    def _decode(self, subject: bytes, payload: bytes, block: bytes | None) -> JetStreamMessage | None:
        try:
            return decode(subject, payload, block)
        except Unreadable as e:
            log.warning("a message of stream %r is left out: %s", self._stream.name, e)
            return None

    # --- consumers -----------------------------------------------------------------------------------------------

    def _open(self, now: float) -> _Consumer | None:
        """The next consumer; None until it is created."""
        if self._creation is None:
            if now >= self._retry_at:
                replicas = 1 if self._first_try else 0
                self._creation = self._stream.submit(partial(self._create, self.position, replicas))
            return None
        if not self._creation.done():
            return None
        creation, self._creation = self._creation, None
        try:
            consumer = creation.result()
        except ApiError as e:
            if e.code == TOO_MANY:  # one of them may end
                if self._first_try:
                    log.warning("%s of stream %r waits for a consumer: %s", self._label, self._stream.name, e)
                self._fail(e)
                return None
            raise ConfigError(f"the JetStream stream {self._stream.name!r} cannot be read: {e}") from e
        except (Unavailable, ProtocolError) as e:
            self._fail(e)
            return None
        self._expected, self._last_delivery, self._last_check = 1, now, now
        self.caught_up = consumer.pending == 0
        if 0 < self.position < consumer.first - 1:
            log.warning(
                "%s: messages %d to %d of stream %r were removed before they were read",
                *(self._label, self.position + 1, consumer.first - 1, self._stream.name),
            )
        return consumer

    async def _create(self, after: int, replicas: int, connection: Connection) -> _Consumer:
        stream = self._stream
        state = stream.require_same(await request(connection, f"STREAM.INFO.{stream.name}"))["state"]
        name = f"{CONSUMER_PREFIX}{NUID().next().decode()}"
        config = {
            "name": name,
            "ack_policy": "none",
            "num_replicas": replicas,
            "mem_storage": True,
            "inactive_threshold": int(KEPT * 1e9),
            "filter_subjects": [f"{stream.prefix}.>"],
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
        }
        body = {"stream_name": stream.name, "config": config}
        created = await request(connection, f"CONSUMER.CREATE.{stream.name}.{name}", body)
        subscription = _PolledSubscription(connection, stream.name, name, after, after + _UNLIMITED)
        stream.logs.subscriptions.add(subscription)
        await subscription.start()
        return _Consumer(name, subscription, int(created["num_pending"]), int(state["first_seq"]))

    def _check_consumer(self, consumer: _Consumer, now: float) -> None:
        """After some time without messages, check whether the consumer still exists."""
        if self._check is None:
            if now - max(self._last_delivery, self._last_check) > SILENCE:
                api = f"CONSUMER.INFO.{self._stream.name}.{consumer.name}"
                self._check = self._stream.submit(lambda connection: request(connection, api))
            return
        if not self._check.done():
            return
        check, self._check = self._check, None
        self._last_check = now
        try:
            info = check.result()
        except (MamaError, ProtocolError) as e:  # deleted, or its server ended
            self._fail(e)
            return
        lost = int(info["delivered"]["consumer_seq"]) >= self._expected and now - self._last_delivery > 2 * SILENCE
        if lost or not int(info["num_waiting"]):
            self._fail(SubscriptionBroken("the consumer has no pull request, or its deliveries were lost"))

    def _fail(self, error: Exception) -> None:
        log.info("%s of stream %r begins again behind %d: %s", self._label, self._stream.name, self.position, error)
        self._drop()
        self.caught_up = False
        self._retry_at = time.monotonic() + (0.0 if self._first_try else self._delays.next())
        self._first_try = False

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if self._check is not None:
            self._check.cancel()
            self._check = None
        if consumer is not None:
            _delete(self._stream, consumer)

    def close(self) -> None:
        """Never raises."""
        creation, self._creation = self._creation, None
        if creation is not None:
            creation.add_done_callback(partial(_delete_created, self._stream))
        self._drop()


def _delete_created(stream: JetStreamReader, creation: Future[_Consumer]) -> None:
    if creation.exception() is None:
        _delete(stream, creation.result())


def _delete(stream: JetStreamReader, consumer: _Consumer) -> None:
    """Delete the consumer without waiting; if that fails, the server deletes it after ``inactive_threshold``."""

    async def end() -> None:
        await consumer.subscription.stop()
        with contextlib.suppress(Exception):
            await request(consumer.subscription.connection, f"CONSUMER.DELETE.{stream.name}.{consumer.name}")

    stream.logs.subscriptions.discard(consumer.subscription)
    with contextlib.suppress(MamaError):
        loop = consumer.subscription.connection.loop
        loop.soon(lambda: loop.loop.create_task(end()))
