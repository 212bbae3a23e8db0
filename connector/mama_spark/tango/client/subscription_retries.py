"""The times at which failed subscriptions are negotiated again, and the device that tries a missing server. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from zlib import crc32

from mama_spark.contracts.backoff import Backoff

from ..types import DevError
from .keep_alive import Timeouts
from .subscription_states import NO_SUCH_EVENTS, Channel, Member

_ATTEMPT_TIMEOUT = 120.0  #: seconds after which an attempt to reach a server counts as failed without a report


class SubscriptionRetries:
    """Subscriptions that are POSTPONED or HEARTBEAT_LOST, with the time of the next attempt of each. ``seed`` of the
    jitter: number from 0 to 1; None: random."""

    def __init__(self, timeouts: Timeouts, seed: float | None) -> None:
        self._timeouts = timeouts
        self._seed = random.random() if seed is None else seed
        self._waiting: dict[int, Member] = {}

    def next_time(self) -> float:
        """Time of the next attempt; infinity if there is none."""
        return min((subscription.next_retry for subscription in self._waiting.values()), default=math.inf)

    def forget(self, id: int) -> None:
        """The subscription is connected, or cancelled."""
        self._waiting.pop(id, None)

    def heartbeat_missed(self, now: float, subscription: Member, channel: Channel) -> None:
        """The first attempt comes at once."""
        channel.failures, channel.next_attempt = 0, now
        subscription.failures, subscription.next_retry, subscription.cause = 0, now, ""
        self._waiting[subscription.id] = subscription

    def reached(self, now: float, channel: Channel) -> None:
        """A device of a missing server was reached: try the others now."""
        channel.failures, channel.next_attempt = 0, now
        for other in channel.members.values():
            other.next_retry = now

    def failed(self, now: float, subscription: Member, channel: Channel | None, errors: tuple[DevError, ...]) -> None:
        """An attempt failed. ``channel`` is the missing server, if the subscription was connected before."""
        if channel is not None:
            self._put_off(now, channel)
            subscription.next_retry = channel.next_attempt
        else:
            backoff = self._timeouts.retry
            if self._timeouts.refused is not None and any(error.reason in NO_SUCH_EVENTS for error in errors):
                backoff = self._timeouts.refused
            name = subscription.request.full_name
            subscription.next_retry = now + self._delay(backoff, name, subscription.failures)
        subscription.failures += 1
        self._waiting[subscription.id] = subscription

    def due(self, now: float, missing: Callable[[Member], Channel | None]) -> list[Member]:
        """Take the subscriptions to negotiate again now. Of a ``missing`` server one device is tried at a time, another
        one each time, so that the number of attempts does not grow with the number of its devices."""
        found: list[Member] = []
        tried: dict[str, str] = {}  # channel -> full name of its device
        for subscription in sorted(self._waiting.values(), key=lambda subscription: subscription.failures):
            if now < subscription.next_retry:
                continue
            channel, name = missing(subscription), subscription.request.full_name
            if channel is not None and channel.name not in tried and now >= channel.next_attempt:
                tried[channel.name] = name
                channel.next_attempt = now + _ATTEMPT_TIMEOUT
            if channel is None or tried.get(channel.name) == name:
                found.append(subscription)
            else:
                subscription.next_retry = channel.next_attempt
        for subscription in found:
            del self._waiting[subscription.id]
        return found

    def _put_off(self, now: float, channel: Channel) -> None:
        """An attempt to reach a missing server failed: all of its subscriptions wait."""
        if channel.next_attempt > now + self._timeouts.retry.most:  # the first report of this attempt
            channel.next_attempt = now + self._delay(self._timeouts.retry, channel.name, channel.failures)
            channel.failures += 1
            for other in channel.members.values():
                other.next_retry = channel.next_attempt

    def _delay(self, backoff: Backoff, name: str, failures: int) -> float:
        """The same for all subscriptions of one name: they are negotiated together."""
        return backoff.delay(failures, lambda: (self._seed + crc32(f"{failures} {name}".encode()) / 2**32) % 1)
