"""Subscription to one JetStream pull consumer (NATS ADR-13), with pull requests kept open ahead of the reader.

A subscription runs on the event loop's thread and is read by one other thread. Two limits bound its memory: the bytes
that open requests may still deliver, and the received bytes that were not taken. A request that ends is renewed only
below the second limit.

Each consumer has one subscription. Any error ends it, and the reader creates another consumer after its last record.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from typing import Self

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.nuid import NUID

from mama_spark.contracts.errors import ConfigError, MamaError

from ..connection.connection import Connection
from ..connection.inbound_parser import Deliveries
from ..jetstream.consumers import delete_consumer
from ..protocol.receive_buffer import ReceiveBuffer
from ..protocol.records import DeliveryBuffer, DeliveryParser, read_reply
from ..subjects import to_allow
from .consumer_course import SubscriptionBroken

OPEN_REQUESTS = 4  #: pull requests kept open
REQUEST_BYTES = 1024 * 1024  #: bytes of each request
READ_AHEAD = 4 * 1024 * 1024  #: bytes that may wait for the reader; at more, requests are not renewed
ROWS, BYTES = 8192, 4 * 1024 * 1024  #: of one batch, about

_REQUEST_ENDED = re.compile(r"MaxBytes|Batch Completed|Request Timeout|Requests Pending")
_UNUSED_BYTES = re.compile(r"Nats-Pending-Bytes=(\d+)")
_FEW = 256  #: up to as many records, one request is enough
_UNLIMITED = 1_000_000  #: messages of one pull request: more than fit into its bytes
UNKNOWN = b"?"  #: marks a header block that the client did not pass on


class PullSubscription(Deliveries):
    """One subscription to one consumer.

    :param after: sequence after which it begins
    :param up_to: last sequence, beyond which nothing is requested; None: what comes is read without an end, by
        :meth:`poll`
    """

    def __init__(self, connection: Connection, stream: str, consumer: str, after: int, up_to: int | None) -> None:
        self.connection, self.stream, self.consumer, self._up_to = connection, stream, consumer, up_to
        self._wanted = _UNLIMITED if up_to is None else up_to - after
        self.next_subject = f"{connection.api_prefix}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self.inbox = f"_INBOX.{NUID().next().decode()}"
        self._ready = threading.Condition(threading.Lock())
        self._buffers: deque[DeliveryBuffer] = deque()
        self._buffered_bytes = 0  # in _buffers
        self._flushes = 0
        self._flush_requested = False
        self._parser = DeliveryParser(0)
        self._subscription: Subscription | None = None
        self._raw: bytes | None = None
        self._open_requests: dict[str, int] = {}  # inbox of an open request -> its bytes
        self._requests_made = 0
        self._to_renew: list[int] = []  # bytes of requests to renew
        self._error: MamaError | None = None
        self._ended = False

    # --- on the loop -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe, and request the first records.

        :raises SubscriptionBroken: the connection is closed
        """
        try:
            self._subscription = await self.connection.client.subscribe(
                f"{self.inbox}.*", cb=self._on_message, pending_bytes_limit=0, pending_msgs_limit=0
            )
        except nats.errors.Error as e:
            raise SubscriptionBroken(f"cannot subscribe: {e}") from e
        assert self._subscription is not None
        self._raw = self.connection.deliver_raw(self._subscription, self._parse_raw)
        few = self._wanted <= _FEW
        self._to_renew = (
            [REQUEST_BYTES] if few else [REQUEST_BYTES * (i + 1) // OPEN_REQUESTS for i in range(OPEN_REQUESTS)]
        )  # of different sizes, so that they do not end together
        await self._renew()

    def _parse_raw(self, sid: int) -> Self:
        self._parser = DeliveryParser(sid)
        return self

    async def _renew(self) -> None:
        while self._to_renew and self._buffered_bytes < READ_AHEAD and not self._ended:
            size = self._to_renew.pop()
            self._requests_made += 1
            inbox = f"{self.inbox}.{self._requests_made}"
            self._open_requests[inbox] = size
            body = orjson.dumps({"batch": self._wanted, "max_bytes": size})
            try:
                await self.connection.client.publish(self.next_subject, body, reply=inbox)
            except Exception as e:  # noqa: BLE001 - another subscription may succeed
                self.fail(SubscriptionBroken(f"{type(e).__name__}: {e}"))

    def _renew_soon(self) -> None:
        self.connection.loop.loop.create_task(self._renew())

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """See :class:`~mama_spark.nats.connection.inbound_parser.Deliveries`."""
        end, missing = self._parser.take(data, at)
        if end > at:
            self._records_added()
        return end, missing

    def take_shared(self, received: ReceiveBuffer) -> int:
        """See :class:`~mama_spark.nats.connection.inbound_parser.Deliveries`."""
        before = len(received)
        missing = self._parser.take_shared(received)
        if len(received) < before:
            self._records_added()
        return missing

    def _records_added(self) -> None:
        """Pass on the received records if they are enough, or the last ones."""
        buffer = self._parser.buffer
        sequence, _, _, pending = buffer.tails[-1].split(b".")[:4]
        last = pending == b"0" or (self._up_to is not None and int(sequence) >= self._up_to)
        if last or buffer.size > BYTES or len(buffer) >= ROWS:
            self._flush_buffer()
        self._ended = self._ended or (last and self._up_to is not None)

    def on_status(self, subject: str, status: int, text: str) -> None:
        """See :class:`~mama_spark.nats.connection.inbound_parser.Deliveries`."""
        size = self._open_requests.pop(subject, None)
        if size is None:
            return
        if not _REQUEST_ENDED.search(text):
            self.fail(SubscriptionBroken(f"the consumer says {status} {text}"))
            return
        left = _UNUSED_BYTES.search(text)
        if left is not None and int(left[1]) >= size:  # the next record alone is larger than the request
            self._to_renew.append(max(2 * size, self.connection.client.max_payload + REQUEST_BYTES))
        else:
            self._to_renew.append(REQUEST_BYTES)
        self._renew_soon()

    async def _on_message(self, msg: Msg) -> None:
        """Without the fast path: parsed by nats-py, which keeps one value per header. So the block of a range is
        fetched later; what is read without an end comes from engines, which write only one."""
        place = read_reply(msg.reply.encode()) if msg.reply else None
        if place is not None:
            block = None if msg.headers is None else UNKNOWN
            if msg.headers is not None and self._up_to is None:
                text = "".join(f"{name}: {value}\r\n" for name, value in msg.headers.items())
                block = f"NATS/1.0\r\n{text}\r\n".encode()
            self._parser.buffer.add(msg.subject.encode(), place.tail, msg.data, block)
            self._records_added()
        elif not msg.reply:
            headers = msg.headers or {}
            text = " ".join([headers.get("Description", ""), *(f"{name}={value}" for name, value in headers.items())])
            self.on_status(msg.subject, int(headers.get("Status", "0")), text)

    def _flush_buffer(self) -> None:
        buffer = self._parser.take_buffer()
        self._flush_requested = False
        with self._ready:
            if len(buffer):
                self._buffers.append(buffer)
                self._buffered_bytes += buffer.size
            self._flushes += 1
            self._ready.notify()

    def fail(self, error: MamaError) -> None:
        """End the subscription: :meth:`next` raises ``error`` after the last records."""
        self._ended = True
        with self._ready:
            self._error = self._error or error
        self._flush_buffer()

    def on_denied(self, kind: str, subject: str) -> None:
        """Fail if the denied subject is one of this subscription."""
        ours, what = (self.next_subject, "publish") if kind == "publish" else (f"{self.inbox}.*", "subscribe")
        if subject.lower() == ours.lower():
            self.fail(ConfigError(f"no permission to {what} to {ours}; allow {what} to {to_allow(ours)!r}"))

    async def _end(self) -> None:
        self._ended = True
        if self._raw is not None:
            self.connection.stop_raw(self._raw)
        if self._subscription is not None:
            with contextlib.suppress(Exception):
                await self._subscription.unsubscribe()
        await delete_consumer(self.connection, self.stream, self.consumer)

    # --- on the reader's thread --------------------------------------------------------------------------------

    def next(self, timeout: float) -> DeliveryBuffer | None:
        """Received records; None after ``timeout`` seconds without any.

        :raises ConfigError: a permission is missing
        :raises SubscriptionBroken: the subscription has ended
        """
        with self._ready:
            self._ready.wait_for(lambda: self._buffers or self._error, timeout)
            if not self._buffers and self._error is None:  # passes on records even if they are few
                flushes = self._flushes
                self.connection.loop.soon(self._flush_buffer)
                self._ready.wait_for(lambda: self._buffers or self._error or self._flushes != flushes, timeout)
            if not self._buffers:
                if self._error is not None:
                    raise self._error
                return None
            buffer = self._buffers.popleft()
            self._buffered_bytes -= buffer.size
        if self._to_renew:
            self.connection.loop.soon(self._renew_soon)
        return buffer

    def poll(self) -> DeliveryBuffer | None:
        """As :meth:`next`, and never waits. Some records may be returned by a later call, because they are buffered."""
        with self._ready:
            if not self._buffers and self._error is None:
                if not self._flush_requested and len(self._parser.buffer):
                    self._flush_requested = True
                    self.connection.loop.soon(self._flush_buffer)
                return None
        return self.next(0)

    def close(self) -> None:
        """Unsubscribe and delete the consumer, without waiting. Never raises."""
        with contextlib.suppress(MamaError):
            loop = self.connection.loop
            loop.soon(lambda: loop.loop.create_task(self._end()))
