"""Subscription to one JetStream pull consumer (NATS ADR-13), with pull requests kept open ahead of the reader.

The reader's thread reads deliveries in bulk when it drives the connection. Two limits bound the memory: the bytes that
open requests may still deliver, and the received bytes that the reader has not taken. An ended request is renewed only
below the second limit. Each consumer has one subscription; any error ends it, and the reader creates another consumer.
"""

from __future__ import annotations

import contextlib
from collections import deque

import orjson

from mama_spark.contracts.errors import ConfigError, MamaError

from ..connection.socket_connection import SocketConnection, new_inbox
from ..error_codes import not_subscribed
from ..jetstream.consumers import delete_soon
from ..protocol.client import Take
from ..protocol.parser import Frame
from ..protocol.records import DeliveryBuffer, DeliveryParser
from ..subjects import to_allow
from .consumer_course import SubscriptionBroken

OPEN_REQUESTS = 4  #: pull requests kept open
REQUEST_BYTES = 1024 * 1024  #: bytes of each request
READ_AHEAD = 4 * 1024 * 1024  #: waiting bytes above which requests are not renewed
ROWS, BYTES = 8192, 4 * 1024 * 1024  #: of one batch, bytes about

_REQUEST_ENDED = ("MaxBytes", "Batch Completed", "Request Timeout", "Requests Pending")
_FEW = 256  #: maximum number of records for which one request is enough
_ANY_BYTES = 1 << 40
_UNLIMITED = 1_000_000  #: messages of one pull request: more than fit into its bytes


class PullSubscription:
    """One subscription to one consumer.

    :param after: sequence after which it begins
    :param up_to: last sequence, beyond which nothing is requested; None = read without end
    :param allowed: messages that a request may ask for; None = any number
    :param most: messages of a request, which then does not end by its bytes: that costs a message of a consumer that
        begins with the last of each subject (nats-server 2.15)
    """

    def __init__(
        self,
        connection: SocketConnection,
        stream: str,
        consumer: str,
        after: int,
        up_to: int | None,
        *,
        allowed: int | None = None,
        most: int | None = None,
    ) -> None:
        self.connection, self.stream, self.consumer, self._up_to = connection, stream, consumer, up_to
        wanted = _UNLIMITED if up_to is None else up_to - after
        self._most_bytes, self._requests = REQUEST_BYTES, 1 if wanted <= _FEW else OPEN_REQUESTS
        if most is not None:
            wanted, self._most_bytes = min(most, wanted), _ANY_BYTES
        self._wanted = min(wanted, allowed or wanted)
        self.next_subject = f"{connection.api_prefix}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self.inbox = new_inbox()
        self._buffers: deque[DeliveryBuffer] = deque()
        self._buffered_bytes = 0  # in _buffers
        self._parser = DeliveryParser(0)
        self._sid: int | None = None
        self._open_requests: dict[str, int] = {}  # inbox of an open request -> its bytes
        self._requests_made = 0
        self._to_renew: list[int] = []  # bytes of each
        self._error: MamaError | None = None
        self._ended = False

    def start(self) -> None:
        """Subscribe, and request the first records. Never waits. SubscriptionBroken: the connection is lost."""
        self._sid = self.connection.subscribe_soon(f"{self.inbox}.*", self._on_frame, self._bulk)
        n = self._requests  # of different sizes, so that they do not end together
        self._to_renew = [self._most_bytes * (i + 1) // n for i in range(n)]
        with self.connection.turn:
            self._renew()
        if self._error is not None:
            self.close()
            raise self._error

    def _bulk(self, sid: int) -> Take:
        self._parser = DeliveryParser(sid)
        return self._take

    def _renew(self) -> None:
        while self._to_renew and self._buffered_bytes < READ_AHEAD and not self._ended:
            size = self._to_renew.pop()
            self._requests_made += 1
            inbox = f"{self.inbox}.{self._requests_made}"
            self._open_requests[inbox] = size
            body = orjson.dumps({"batch": self._wanted, "max_bytes": size})
            try:
                self.connection.publish(self.next_subject, body, inbox.encode())
            except MamaError as e:  # another subscription may succeed
                self.fail(SubscriptionBroken(str(e)))

    # --- deliveries ----------------------------------------------------------------------------------------------

    def _take(self, data: bytes, at: int) -> int:
        while (end := self._parser.take(data, at, ROWS)) > at:
            self._records_added()
            at = end
        return at

    def _records_added(self) -> None:
        """Pass on the received records if they fill a batch, or are the last ones."""
        buffer = self._parser.buffer
        sequence, _, _, pending = buffer.tails[-1].split(b".")[:4]
        last = pending == b"0" or (self._up_to is not None and int(sequence) >= self._up_to)
        if last or buffer.size > BYTES or len(buffer) >= ROWS:
            self._flush_buffer()
        self._ended = self._ended or (last and self._up_to is not None)

    def _on_frame(self, frame: Frame) -> None:
        """Apply a status, which comes instead of a delivery."""
        size = self._open_requests.pop(frame.subject.decode(errors="replace"), None) if frame.status else None
        if size is None:
            return
        if not any(text in frame.status_text for text in _REQUEST_ENDED):
            self.fail(SubscriptionBroken(f"the consumer says {frame.status} {frame.status_text}"))
            return
        left = dict(frame.headers).get("Nats-Pending-Bytes", "")
        if left.isdecimal() and int(left) >= size:  # the next record alone is larger than the request
            self._to_renew.append(max(2 * size, self.connection.info.max_payload + REQUEST_BYTES))
        else:
            self._to_renew.append(self._most_bytes)
        self._renew()

    def _flush_buffer(self) -> None:
        buffer = self._parser.take_buffer()
        if len(buffer):
            self._buffers.append(buffer)
            self._buffered_bytes += buffer.size

    def fail(self, error: MamaError) -> None:
        """End the subscription: :meth:`next` raises ``error`` after the last records."""
        self._ended = True
        self._error = self._error or error
        self._flush_buffer()

    def on_denied(self, kind: str, subject: str) -> None:
        if kind == "publish" and subject == self.next_subject:
            self.fail(ConfigError(f"no permission to publish to {subject}; allow publish to {to_allow(subject)!r}"))
        elif kind != "publish" and subject == f"{self.inbox}.*":
            self.fail(not_subscribed(kind, subject))

    # --- reading -------------------------------------------------------------------------------------------------

    def next(self, timeout: float) -> DeliveryBuffer | None:
        """Received records; None after ``timeout`` seconds without any. ConfigError: a permission is missing.
        SubscriptionBroken: the subscription has ended."""
        if not self._something:
            self.connection.drive(timeout, lambda: self._something)
        with self.connection.turn:
            if not self._something:
                self._flush_buffer()  # however few they are
            return self._next()

    @property
    def _something(self) -> bool:
        return bool(self._buffers) or self._error is not None

    def _next(self) -> DeliveryBuffer | None:
        if not self._buffers:
            if self._error is not None:
                raise self._error
            return None
        buffer = self._buffers.popleft()
        self._buffered_bytes -= buffer.size
        self._renew()
        return buffer

    def close(self) -> None:
        """Unsubscribe and delete the consumer, without waiting. Never raises."""
        self._ended = True
        with contextlib.suppress(MamaError):
            if self._sid is not None:
                self.connection.unsubscribe(self._sid)
        delete_soon(self.connection, self.stream, self.consumer)
