"""What one JetStream consumer delivers, as it comes in: pull requests kept open ahead of the reader.

A feed lives on the loop's thread and is read by one other. It is bounded twice: by the bytes that the open requests may
still bring, and by the bytes that came and were not taken; a request that ends is renewed only while there is room.

One consumer, one feed: whatever goes wrong ends it, and the reader begins another one behind its last record.
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

from mama_spark.errors import ConfigError, MamaError, Unavailable

from ..connection.connection import Connection
from ..jetstream.api import PREFIX
from ..protocol.records import DeliveryBuffer, DeliveryParser, read_reply

REQUESTS = 4  #: kept open
UNIT = 1024 * 1024  #: bytes that each asks for
AHEAD = 4 * 1024 * 1024  #: bytes that may wait for the reader before requests are no more renewed
ROWS, BYTES = 8192, 4 * 1024 * 1024  #: of one batch, about

_SPENT = re.compile(r"MaxBytes|Batch Completed|Request Timeout|Requests Pending")
_LEFT = re.compile(r"Nats-Pending-Bytes=(\d+)")
_FEW = 256  #: records for which one request will do
UNKNOWN = b"?"  #: header block that the client did not hand on


class SubscriptionBroken(Unavailable):
    """The consumer, or the way to it, is gone: begin again."""


class PullSubscription:
    """One subscription to one consumer.

    :param after: where it begins; ``up_to``: its end, beyond which nothing is asked for
    """

    def __init__(self, connection: Connection, stream: str, consumer: str, after: int, up_to: int) -> None:
        self.connection, self._after, self._up_to = connection, after, up_to
        self.next_subject = f"{PREFIX}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self.inbox = f"_INBOX.{NUID().next().decode()}"
        self._ready = threading.Condition(threading.Lock())
        self._full: deque[DeliveryBuffer] = deque()
        self._held = 0  # bytes in _full
        self._turns = 0
        self._parser = DeliveryParser(0)
        self._subscription: Subscription | None = None
        self._raw: bytes | None = None
        self._asked: dict[str, int] = {}  # inbox of an open request -> its bytes
        self._number = 0
        self._spent: list[int] = []  # bytes of requests to renew
        self._broken: MamaError | None = None
        self._over = False

    # --- on the loop -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe, and ask for the first records.

        :raises Broken: the connection is closed
        """
        try:
            self._subscription = await self.connection.client.subscribe(
                f"{self.inbox}.*", cb=self._on_message, pending_bytes_limit=0, pending_msgs_limit=0
            )
        except nats.errors.Error as e:
            raise SubscriptionBroken(f"cannot subscribe: {e}") from e
        assert self._subscription is not None
        self._raw = self.connection.deliver_raw(self._subscription, self._parse_raw)
        few = self._up_to - self._after <= _FEW
        self._spent = [UNIT] if few else [UNIT * (i + 1) // REQUESTS for i in range(REQUESTS)]  # not to end together
        await self._renew()

    def _parse_raw(self, sid: int) -> Self:
        self._parser = DeliveryParser(sid)
        return self

    async def _renew(self) -> None:
        while self._spent and self._held < AHEAD and not self._over:
            size = self._spent.pop()
            self._number += 1
            inbox = f"{self.inbox}.{self._number}"
            self._asked[inbox] = size
            body = orjson.dumps({"batch": self._up_to - self._after, "max_bytes": size})
            try:
                await self.connection.client.publish(self.next_subject, body, reply=inbox)
            except Exception as e:  # noqa: BLE001 - whatever it is, another feed may do better
                self.fail(SubscriptionBroken(f"{type(e).__name__}: {e}"))

    def _renew_soon(self) -> None:
        self.connection.loop.loop.create_task(self._renew())

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """See :class:`~mama_spark.bridges.nats.connection.ack_parser.Deliveries`."""
        end, missing = self._parser.take(data, at)
        if end > at:
            self._look()
        return end, missing

    def _look(self) -> None:
        """Records came: enough of them to be handed over, or the last ones?"""
        gather = self._parser.gather
        sequence, _, _, pending = gather.tails[-1].split(b".")[:4]
        last = pending == b"0" or int(sequence) >= self._up_to
        if last or gather.size > BYTES or len(gather) >= ROWS:
            self._hand_over()
        self._over = self._over or last

    def on_status(self, subject: str, status: int, text: str) -> None:
        """See :class:`~mama_spark.bridges.nats.connection.ack_parser.Deliveries`."""
        size = self._asked.pop(subject, None)
        if size is None:
            return
        if not _SPENT.search(text):
            self.fail(SubscriptionBroken(f"the consumer says {status} {text}"))
            return
        left = _LEFT.search(text)
        if left is not None and int(left[1]) >= size:  # nothing fitted: the next record alone is larger
            self._spent.append(max(2 * size, self.connection.client.max_payload + UNIT))
        else:
            self._spent.append(UNIT)
        self._renew_soon()

    async def _on_message(self, msg: Msg) -> None:
        """By public calls: the client has parsed it. It keeps one value a header, so the block is asked for later."""
        place = read_reply(msg.reply.encode()) if msg.reply else None
        if place is not None:
            block = UNKNOWN if msg.headers is not None else None
            self._parser.gather.add(msg.subject.encode(), place.tail, msg.data, block)
            self._look()
        elif not msg.reply:
            headers = msg.headers or {}
            text = " ".join([headers.get("Description", ""), *(f"{name}={value}" for name, value in headers.items())])
            self.on_status(msg.subject, int(headers.get("Status", "0")), text)

    def _hand_over(self) -> None:
        gather = self._parser.swap()
        with self._ready:
            if len(gather):
                self._full.append(gather)
                self._held += gather.size
            self._turns += 1
            self._ready.notify()

    def fail(self, error: MamaError) -> None:
        """Nothing more will come."""
        self._over = True
        with self._ready:
            self._broken = self._broken or error
        self._hand_over()

    def on_denied(self, kind: str, subject: str) -> None:
        """A permission is missing; ours?"""
        ours, what = (self.next_subject, "publish") if kind == "publish" else (f"{self.inbox}.*", "subscribe")
        if subject.lower() == ours.lower():
            self.fail(ConfigError(f"no permission to {what} to {ours}"))

    async def stop(self) -> None:
        """Hear no more of it."""
        self._over = True
        if self._raw is not None:
            self.connection.stop_raw(self._raw)
        if self._subscription is not None:
            with contextlib.suppress(Exception):
                await self._subscription.unsubscribe()

    # --- on the reader's thread --------------------------------------------------------------------------------

    def next(self, timeout: float) -> DeliveryBuffer | None:
        """Records that came; None when none did for ``timeout`` seconds.

        :raises ConfigError: a permission is missing
        :raises Broken: nothing more will come
        """
        with self._ready:
            self._ready.wait_for(lambda: self._full or self._broken, timeout)
            if not self._full and self._broken is None:  # a few may wait for company
                turn = self._turns
                self.connection.loop.soon(self._hand_over)
                self._ready.wait_for(lambda: self._full or self._broken or self._turns != turn, timeout)
            if not self._full:
                if self._broken is not None:
                    raise self._broken
                return None
            gather = self._full.popleft()
            self._held -= gather.size
        if self._spent:
            self.connection.loop.soon(self._renew_soon)
        return gather
