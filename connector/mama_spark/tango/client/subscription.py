"""Subscription, the object that ``subscribe`` returns, and EventSubMode, the modes of subscribing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from mama_spark.contracts.errors import MamaError

from ..giop.ior import DeviceName
from ..types import EventType
from .event_dispatcher import DispatchCounts
from .event_queue import EventQueue
from .subscription_events import SubscriptionEvent
from .subscription_states import SubscriptionState

Callback = Callable[[SubscriptionEvent], object]


class EventSubMode(IntEnum):
    """Mode of ``subscribe``: when it returns and whether it raises. EventSubMode of Tango 10.1, with the same numbers.

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
        """The value is read first and delivered as INITIAL."""
        return self not in (EventSubMode.SYNC, EventSubMode.ASYNC)

    @property
    def waits(self) -> bool:
        """``subscribe`` waits for the first attempt."""
        return self not in (EventSubMode.ASYNC, EventSubMode.ASYNC_READ)

    @property
    def raises(self) -> bool:
        """``subscribe`` raises when the first attempt fails."""
        return self in (EventSubMode.SYNC, EventSubMode.SYNC_READ)


@dataclass(frozen=True, slots=True)
class SubscriberCounts:
    """Totals since the subscriber was made.

    :ivar dispatched: totals of received messages
    :ivar dropped: number of events that full queues dropped
    :ivar callback_errors: number of callbacks that raised
    :ivar reconnects: number of reconnections of channels
    """

    dispatched: DispatchCounts
    dropped: int
    callback_errors: int
    reconnects: int


class SubscriptionOwner(Protocol):
    """What a subscription needs: an :class:`~mama_spark.tango.client.event_consumer.EventConsumer`."""

    def state(self, subscription: Subscription) -> SubscriptionState: ...

    def topic(self, subscription: Subscription) -> str | None: ...

    def cancel(self, subscription: Subscription) -> None: ...


class Subscription:
    """One subscription; :meth:`~mama_spark.tango.client.subscriber.TangoSubscriber.subscribe` returns it.

    :ivar idl: IDL version of the device
    :ivar queue: queue of its events; subscriptions without a callback share one
    :ivar raises_errors: ``subscribe`` raises errors; until the first negotiation succeeds they are not delivered
    :ivar ready: set when ``subscribe`` may return: the first negotiation has ended, and the value was read
    :ivar failure: why the last negotiation or confirmation failed; None: the server accepted it
    """

    __slots__ = (
        "_owner", "attribute", "callback", "cancelled", "device", "event", "failure", "id", "idl", "queue",
        "raises_errors", "ready",
    )  # fmt: skip

    def __init__(
        self,
        owner: SubscriptionOwner,
        device: DeviceName,
        attribute: str,
        event: EventType,
        queue: EventQueue,
        callback: Callback | None,
    ) -> None:
        self._owner = owner
        self.id = 0
        self.device, self.attribute, self.event = device, attribute, event
        self.idl = 5
        self.queue, self.callback = queue, callback
        self.cancelled = False
        self.raises_errors = False
        self.ready = threading.Event()
        self.failure: MamaError | None = None

    def __repr__(self) -> str:
        return f"<Subscription {self} {self.state.value}>"

    def __str__(self) -> str:
        name, hash_, suffix = str(self.device).partition("#")
        return f"{name}{'/' if self.attribute else ''}{self.attribute}{hash_}{suffix}.{self.event.wire_name}"

    @property
    def state(self) -> SubscriptionState:
        """Current state."""
        return self._owner.state(self)

    @property
    def topic(self) -> str | None:
        """Topic of its events; None before the first negotiation."""
        return self._owner.topic(self)

    def unsubscribe(self) -> None:
        """Cancel the subscription and discard its waiting events. May be called twice and in a callback."""
        self._owner.cancel(self)
