"""Progress of one reader's consumers: when one is lost, and when the next one begins (NATS ADR-17). Pure.

A reader uses one consumer after another. Any failure (a gap in the consumer's sequences, silence, a lost connection, a
deleted consumer, a restarted server) ends one, and the next begins after the last record that was passed on, so no
record is lost or read twice.
"""

from __future__ import annotations

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import Unavailable

from ..jetstream.answers import ConsumerInfo
from ..protocol.records import DeliveryNumbers, OutOfOrder

#: Delays before the next consumer; the first lost one is replaced at once.
BACKOFF = Backoff(0.05, 1.0)
#: Seconds to wait for records in transit, by the number of consecutive consumers without a record.
IN_TRANSIT = Backoff(2.0, 3600.0)


class SubscriptionBroken(Unavailable):
    """The consumer or the connection is lost: the reader needs another subscription."""


class ConsumerCourse:
    """Position of one reader in a stream, over one consumer after another.

    :param in_transit: seconds to wait for records in transit, by :attr:`failed`
    :ivar position: sequence of the last delivery, or after which the first consumer begins
    :ivar delivered: number of deliveries of this consumer
    :ivar heard: time at which the last record came or was passed on, in seconds
    :ivar failed: number of consecutive lost consumers without a delivery
    """

    def __init__(self, after: int, now: float, in_transit: Backoff = IN_TRANSIT) -> None:
        self.position, self.heard, self._in_transit = after, now, in_transit
        self.delivered = self.failed = 0
        self._exhausted: int | None = None  # position at which a consumer had nothing pending

    def begin(self) -> None:
        """Start another consumer behind :attr:`position`."""
        self.delivered = 0

    def take(self, numbers: DeliveryNumbers, now: float) -> None:
        """Move behind these deliveries. OutOfOrder: earlier ones were lost."""
        if numbers.first != self.delivered + 1:
            raise OutOfOrder(f"delivery {numbers.first} came instead of {self.delivered + 1}")
        self.delivered += len(numbers.sequences)
        self.position, self.heard, self.failed = int(numbers.sequences[-1]), now, 0

    def fail(self) -> float:
        """Count this consumer as lost; returns the seconds until the next one."""
        self.failed += 1
        return BACKOFF.delay(self.failed - 2) if self.failed > 1 else 0.0

    def check(self, info: ConsumerInfo, now: float) -> None:
        """Check a silent consumer by the server's state of it. SubscriptionBroken: it is lost."""
        if info.delivered > self.delivered:
            if now - self.heard > self._in_transit.delay(self.failed):
                raise SubscriptionBroken(f"{info.delivered} were sent, {self.delivered} came")
        elif not info.waiting:
            raise SubscriptionBroken("the consumer waits for nothing")

    def has_nothing_left(self, info: ConsumerInfo, now: float) -> bool:
        """Whether this consumer, like the one before it, reports no more records: servers differ in what they count for
        a filter without matches. The first that reports so is given up (:class:`SubscriptionBroken`)."""
        if info.pending or info.delivered > self.delivered:
            return False
        if self._exhausted == self.position:
            return True
        self._exhausted, self.heard = self.position, now
        raise SubscriptionBroken("the consumer has no more records")
