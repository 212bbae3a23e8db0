"""One subscription as users hold it, and in which ways it can begin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from mama_spark.errors import ConfigError, MamaError

from ..giop.ior import DeviceName
from ..types import EventType
from .dispatcher import DispatchCounts
from .event_queue import EventQueue
from .subscription_events import SubscriptionEvent
from .subscription_states import SubscriptionState

Callback = Callable[[SubscriptionEvent], object]


class SubMode(IntEnum):
    """What ``subscribe`` does before it returns; EventSubMode of Tango 10.1, with its numbers.

    ========== ======================== ======================= ====================================
    mode       returns                  when it fails           first notice
    ========== ======================== ======================= ====================================
    SYNC       when agreed              raises                  the next event
    SYNC_READ  when the value was read  raises                  the value, INITIAL
    ASYNC      at once                  errors, tries for ever  the next event
    ASYNC_READ at once                  errors, tries for ever  the value, INITIAL
    STATELESS  after the first try      errors, tries for ever  the value, INITIAL, or an error
    ========== ======================== ======================= ====================================
    """

    SYNC = 1
    SYNC_READ = 2
    ASYNC = 3
    ASYNC_READ = 4
    STATELESS = 5

    @property
    def reads(self) -> bool:
        return self not in (SubMode.SYNC, SubMode.ASYNC)

    @property
    def waits(self) -> bool:
        return self not in (SubMode.ASYNC, SubMode.ASYNC_READ)

    @property
    def raises(self) -> bool:
        return self in (SubMode.SYNC, SubMode.SYNC_READ)


@dataclass(frozen=True, slots=True)
class SubscriberCounts:
    """What happened since the beginning.

    :ivar routes: what came
    :ivar overflowed: notices that were dropped here, since nobody took them
    :ivar callback_errors: callbacks that raised
    :ivar reconnects: connections made anew
    """

    routes: DispatchCounts
    overflowed: int
    callback_errors: int
    reconnects: int


class Owner(Protocol):
    """The subscriber, as far as its subscriptions need it."""

    inbox: EventQueue

    def state(self, subscription: Subscription) -> SubscriptionState: ...

    def topic(self, subscription: Subscription) -> str | None: ...

    def unsubscribe(self, subscription: Subscription) -> None: ...


class Subscription:
    """One subscription, as users hold it. Made by
    :meth:`~mama_spark.tango.client.subscriber.TangoSubscriber.subscribe`."""

    __slots__ = (
        "answered", "failure", "_subscriber", "attribute", "callback", "cancelled", "device", "event", "id", "idl",
        "inbox", "muted",
    )  # fmt: skip

    def __init__(
        self,
        subscriber: Owner,
        device: DeviceName,
        attribute: str,
        event: EventType,
        inbox: EventQueue,
        callback: Callback | None,
    ) -> None:
        self._subscriber = subscriber
        self.id = 0
        self.device, self.attribute, self.event = device, attribute, event
        self.idl = 5  #: of the device, as its server told
        self.inbox, self.callback = inbox, callback
        self.cancelled = False
        self.muted = False  #: errors are raised, not told, before the first agreement
        self.answered = threading.Event()
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
        """None before the server told it."""
        return self._subscriber.topic(self)

    def get_events(self, limit: int = 1_000_000) -> list[SubscriptionEvent]:
        """What waits in the queue of this subscription, in order (the pull model).

        :raises ConfigError: it has none
        """
        if self.inbox is self._subscriber.inbox or self.callback is not None:
            raise ConfigError(f"{self} has no queue of its own")
        return self.inbox.take(limit)

    def unsubscribe(self) -> None:
        """Harmless when it is cancelled, also in a callback. What waits is dropped."""
        self._subscriber.unsubscribe(self)
