"""A subscription as users hold it, and the modes of subscribing (EventSubMode)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from mama_spark.errors import ConfigError, MamaError

from ..giop.ior import DeviceName
from ..types import EventType
from .event_dispatcher import DispatchCounts
from .event_queue import EventQueue
from .subscription_events import SubscriptionEvent
from .subscription_states import SubscriptionState

Callback = Callable[[SubscriptionEvent], object]


class EventSubMode(IntEnum):
    """What ``subscribe`` does before it returns; EventSubMode of Tango 10.1, with its numbers.

    ========== ======================== ============================= ====================================
    mode       returns                  when the negotiation fails    first event
    ========== ======================== ============================= ====================================
    SYNC       when negotiated          raises                        the next event
    SYNC_READ  when the value was read  raises                        the value, INITIAL
    ASYNC      at once                  delivers ERROR, retries       the next event
    ASYNC_READ at once                  delivers ERROR, retries       the value, INITIAL
    STATELESS  after the first attempt  delivers ERROR, retries       the value, INITIAL, or an ERROR
    ========== ======================== ============================= ====================================
    """

    SYNC = 1
    SYNC_READ = 2
    ASYNC = 3
    ASYNC_READ = 4
    STATELESS = 5

    @property
    def reads(self) -> bool:
        return self not in (EventSubMode.SYNC, EventSubMode.ASYNC)

    @property
    def waits(self) -> bool:
        return self not in (EventSubMode.ASYNC, EventSubMode.ASYNC_READ)

    @property
    def raises(self) -> bool:
        return self in (EventSubMode.SYNC, EventSubMode.SYNC_READ)


@dataclass(frozen=True, slots=True)
class SubscriberCounts:
    """Totals since the beginning.

    :ivar dispatched: received events
    :ivar dropped: events that full queues dropped
    :ivar callback_errors: callbacks that raised
    :ivar reconnects: channels that were connected again
    """

    dispatched: DispatchCounts
    dropped: int
    callback_errors: int
    reconnects: int


class SubscriptionOwner(Protocol):
    """The subscriber, as far as its subscriptions need it."""

    queue: EventQueue

    def state(self, subscription: Subscription) -> SubscriptionState: ...

    def topic(self, subscription: Subscription) -> str | None: ...

    def unsubscribe(self, subscription: Subscription) -> None: ...


class Subscription:
    """One subscription, returned by :meth:`~mama_spark.tango.client.subscriber.TangoSubscriber.subscribe`.

    :ivar queue: where its events wait; shared with others unless it was asked for
    :ivar ready: set when ``subscribe`` may return: after the first answer of the server, and the read of the value
    :ivar failure: of the first negotiation
    """

    __slots__ = (
        "_subscriber", "attribute", "callback", "cancelled", "device", "event", "failure", "id", "idl", "queue",
        "raises_errors", "ready",
    )  # fmt: skip

    def __init__(
        self,
        subscriber: SubscriptionOwner,
        device: DeviceName,
        attribute: str,
        event: EventType,
        queue: EventQueue,
        callback: Callback | None,
    ) -> None:
        self._subscriber = subscriber
        self.id = 0
        self.device, self.attribute, self.event = device, attribute, event
        self.idl = 5  #: version of the device's interface
        self.queue, self.callback = queue, callback
        self.cancelled = False
        self.raises_errors = False  #: ``subscribe`` raises errors until the first negotiation succeeded
        self.ready = threading.Event()
        self.failure: MamaError | None = None

    def __repr__(self) -> str:
        return f"<Subscription {self} {self.state.value}>"

    def __str__(self) -> str:
        name, hash_, suffix = str(self.device).partition("#")
        return f"{name}{'/' if self.attribute else ''}{self.attribute}{hash_}{suffix}.{self.event.wire_name}"

    @property
    def state(self) -> SubscriptionState:
        return self._subscriber.state(self)

    @property
    def topic(self) -> str | None:
        """None before the first negotiation."""
        return self._subscriber.topic(self)

    def get_events(self, limit: int = 1_000_000) -> list[SubscriptionEvent]:
        """Take the events in the queue of this subscription, in order (pull model).

        :raises ConfigError: it has no queue of its own
        """
        if self.queue is self._subscriber.queue or self.callback is not None:
            raise ConfigError(
                f"{self} has no queue of its own: give ``queue`` to subscribe, or use TangoSubscriber.take()"
            )
        return self.queue.take(limit)

    def unsubscribe(self) -> None:
        """Cancel the subscription and discard its waiting events. May be called twice, and in a callback."""
        self._subscriber.unsubscribe(self)
