"""How far the consumers of one reader have come, when one of them is lost, and when the next one begins (NATS ADR-17).
Pure.

A reader uses one consumer after another. Any failure (a gap in the consumer's sequences, silence, a lost connection, a
deleted consumer, a restarted server) ends one, and the next begins after the last record that was passed on, so no
record is lost or read twice.
"""

from __future__ import annotations

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import Unavailable

from ..jetstream.answers import ConsumerInfo
from ..protocol.records import DeliveryNumbers, OutOfOrder

#: Delays before the next consumer, after the one that is replaced at once.
BACKOFF = Backoff(0.05, 1.0)
#: Seconds to wait for records under way, by the number of consecutive consumers without a record.
IN_TRANSIT = Backoff(2.0, 3600.0)


class SubscriptionBroken(Unavailable):
    """The consumer or the connection is lost: another subscription is needed."""


class ConsumerCourse:
    """The course of one reader through a stream, by one consumer after another.

    :param in_transit: seconds to wait for records under way, by :attr:`failed`
    :ivar position: sequence in the stream of the last delivery, or after which the first consumer begins
    :ivar delivered: deliveries of this consumer
    :ivar heard: when the last record came, or was passed on, in seconds
    :ivar failed: consecutive consumers that were lost, since one delivered
    """

    def __init__(self, after: int, now: float, in_transit: Backoff = IN_TRANSIT) -> None:
        self.position, self.heard, self._in_transit = after, now, in_transit
        self.delivered = self.failed = 0
        self._exhausted: int | None = None  # position at which a consumer had nothing pending

    def begin(self) -> None:
        """Another consumer begins behind :attr:`position`."""
        self.delivered = 0

    def take(self, numbers: DeliveryNumbers, now: float) -> None:
        """Go on behind these deliveries.

        :raises OutOfOrder: some before them were lost
        """
        if numbers.first != self.delivered + 1:
            raise OutOfOrder(f"delivery {numbers.first} came instead of {self.delivered + 1}")
        self.delivered += len(numbers.sequences)
        self.position, self.heard, self.failed = int(numbers.sequences[-1]), now, 0

    def fail(self) -> float:
        """This consumer is lost; returns the seconds to wait before the next one begins."""
        self.failed += 1
        return BACKOFF.delay(self.failed - 2) if self.failed > 1 else 0.0

    def check(self, info: ConsumerInfo, now: float) -> None:
        """Whether a consumer that is silent goes on.

        :param info: as the server has it now
        :raises SubscriptionBroken: it does not
        """
        if info.delivered > self.delivered:
            if now - self.heard > self._in_transit.delay(self.failed):
                raise SubscriptionBroken(f"{info.delivered} were sent, {self.delivered} came")
        elif not info.waiting:
            raise SubscriptionBroken("the consumer waits for nothing")

    def has_nothing_left(self, info: ConsumerInfo, now: float) -> bool:
        """Whether this consumer, like the one before it, says that nothing is left: servers differ in what they count
        for a filter that matches nothing. The first that says so is given up: :class:`SubscriptionBroken`."""
        if info.pending or info.delivered > self.delivered:
            return False
        if self._exhausted == self.position:
            return True
        self._exhausted, self.heard = self.position, now
        raise SubscriptionBroken("the consumer has no more records")
