"""Asks the servers of subscriptions what they have sent; the receiving thread compares it with what it received."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mama_spark.contracts.errors import MamaError

from ...giop.ior import DeviceName
from ...types import EventType
from ..event_dispatcher import EventDispatcher
from ..subscription_calls import SubscriptionCalls
from ..subscription_events import SubscriptionEvent

logger = logging.getLogger(__name__)

#: Events that carry what a read gives.
_READABLE = (EventType.CHANGE, EventType.ARCHIVE)


class CheckedSubscription(NamedTuple):
    """A connected subscription.

    :ivar idl: IDL version of the device
    """

    device: DeviceName
    attribute: str
    event: EventType
    idl: int
    topic: str


class LossChecks:
    """Checks of one subscriber; see :mod:`~mama_spark.tango.client.losses.loss_detector`.

    :param execute: calls a function in the receiving thread
    :param deliver: delivers events, in the receiving thread
    """

    def __init__(
        self,
        calls: SubscriptionCalls,
        dispatcher: EventDispatcher,
        execute: Callable[[Callable[[], None]], None],
        deliver: Callable[[list[SubscriptionEvent]], None],
    ) -> None:
        self._calls, self._dispatcher = calls, dispatcher
        self._execute, self._deliver = execute, deliver

    def value_was_read(self, frames: Sequence[bytes]) -> None:
        """Note that a value was read and delivered, outside checks."""
        self._execute(lambda: self._dispatcher.losses.value_was_read(frames))

    def check(self, subscriptions: Iterable[CheckedSubscription]) -> None:
        """Make one check. Blocks for calls; a server that does not answer is left to the heartbeats."""
        by_server: dict[DeviceName, list[CheckedSubscription]] = defaultdict(list)
        for subscription in subscriptions:
            try:
                by_server[self._calls.admin_name(subscription.device)].append(subscription)
            except MamaError as error:
                logger.debug("no check of losses of %s: %s", subscription.device, error)
        for server, found in by_server.items():
            try:
                self._check_server(found)
            except MamaError as error:
                logger.debug("no check of losses of %s: %s", server, error)

    def _check_server(self, subscriptions: list[CheckedSubscription]) -> None:
        counters = self._calls.sent_counters(subscriptions[0].device)
        if counters is None:
            self._check_values(subscriptions)
            return
        keys = {s.topic.encode("latin-1"): _without_idl(s.topic) for s in subscriptions}
        sent = {topic: counters[key] for topic, key in keys.items() if key in counters}
        # Time of day: stamps events.
        self._execute(lambda: self._deliver(self._dispatcher.check_counters(sent, time.time_ns())))

    def _check_values(self, subscriptions: list[CheckedSubscription]) -> None:
        by_device: dict[tuple[DeviceName, int], dict[str, str]] = defaultdict(dict)
        for s in subscriptions:
            if s.event in _READABLE:
                by_device[s.device, s.idl][s.topic] = s.attribute
        values = [
            frames
            for (device, idl), topics in by_device.items()
            for frames in self._calls.read_values(device, topics, idl)
        ]
        self._execute(lambda: self._deliver(self._dispatcher.check_values(values, time.time_ns())))


def _without_idl(topic: str) -> str:
    name, _, event = topic.lower().rpartition(".")
    return f"{name}.{event.removeprefix('idl5_')}"
