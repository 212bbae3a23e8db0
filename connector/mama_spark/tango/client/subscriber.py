"""TangoSubscriber: subscriptions to Tango events (RFC 12) in pure Python.

    with TangoSubscriber() as subscriber:
        subscriber.subscribe("tango://db:10000/sys/tg_test/1", "double_scalar", "change")
        for event in subscriber.take(1000, timeout=1.0):
            print(event.kind, event.value.read)

This module is the interface for users; :mod:`~mama_spark.tango.client.event_consumer` executes subscriptions.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

from mama_spark.contracts.errors import BackgroundTaskFailed, ClientClosed, ConfigError, MamaError

from ..errors import CallLost
from ..giop.ior import parse_device
from ..topics import is_name
from ..types import EVENT_NAMES, EventType
from .event_consumer import EventConsumer
from .event_queue import MAX_BYTES
from .keep_alive import Timeouts
from .subscription import Callback, EventSubMode, SubscriberCounts, Subscription
from .subscription_events import SubscriptionEvent


class TangoSubscriber:
    """Client that subscribes to Tango events. ``with`` or :meth:`start` opens it. Methods may be called in any thread.

    :param tango_host: ``host:port`` of the database of names without a host; None: the variable ``TANGO_HOST``
    :param limit: largest number of waiting events, of :meth:`take` and of callbacks each (TG-44)
    :param max_bytes: approximate memory of the events in each queue; 0: no limit
    :param hwm: high-water mark of the sockets; None: ``TANGO_EVENT_BUFFER_HWM``, or the value that the server sends
    :param timeouts: periods of heartbeat checks, confirmations and retries; None: those of cppTango
    :param timeout: timeout of a call in seconds
    :param report_availability: whether to deliver ONLINE and OFFLINE, too, for heartbeats that come back or are missing
    :param report_causes: then also deliver OFFLINE again when its cause becomes known: a server that was stopped, that
        was killed, or that is out of reach
    :ivar queue: events of the subscriptions without a callback
    """

    def __init__(
        self,
        tango_host: str | None = None,
        *,
        limit: int = 1_000_000,
        max_bytes: int = MAX_BYTES,
        hwm: int | None = None,
        timeouts: Timeouts | None = None,
        timeout: float = 3.0,
        report_availability: bool = False,
        report_causes: bool = False,
    ) -> None:
        self.tango_host = tango_host or os.environ.get("TANGO_HOST")
        self._timeout = timeout
        self._consumer = EventConsumer(
            limit=limit, max_bytes=max_bytes, hwm=hwm, timeouts=timeouts, timeout=timeout,
            report_availability=report_availability,
            report_causes=report_causes,
        )  # fmt: skip
        self.queue = self._consumer.delivery.shared_queue

    def start(self) -> Self:
        """Open the sockets and start the threads; may be called twice.

        :raises ClientClosed: the subscriber was closed
        """
        if self._consumer.closed:
            raise ClientClosed("this Tango subscriber was closed; make a new one")
        self._consumer.start()
        return self

    def close(self) -> None:
        """Cancel all subscriptions and stop all threads; may be called twice. Received events can still be taken."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        consumer = getattr(self, "_consumer", None)
        if consumer is not None and consumer.is_open:
            warnings.warn("a TangoSubscriber was not closed", ResourceWarning, stacklevel=2)

    def subscribe(
        self,
        device: str,
        attribute: str | None = None,
        event: EventType | str = EventType.CHANGE,
        *,
        mode: EventSubMode = EventSubMode.SYNC_READ,
        callback: Callback | None = None,
    ) -> Subscription:
        """Subscribe to one event type of one attribute (TG-25, TG-27).

        :param device: device name, ``[tango://host:port/]domain/family/member[/attribute][#dbase=no]``
        :param attribute: attribute name; None: the device name contains it, or the event is an interface change
        :param event: event type, or its name in topics such as ``change`` or ``user_event``
        :param mode: what the method waits for and whether it raises
        :param callback: called with each subscription event; one thread runs all callbacks. Its exceptions are logged
            and counted. Without it, events wait for :meth:`take`
        :raises ClientClosed: the subscriber is not open
        :raises BadAddress: the device name is invalid
        :raises ConfigError: attribute or event type is invalid
        :raises MamaError: in the modes that raise: the server cannot be reached, or refused the subscription
        """
        return self.subscribe_many([(device, attribute, event)], mode=mode, callback=callback)[0]

    def subscribe_many(
        self,
        requests: Iterable[tuple[str, str | None, EventType | str]],
        *,
        mode: EventSubMode = EventSubMode.STATELESS,
        callback: Callback | None = None,
    ) -> list[Subscription]:
        """The subscriptions of many :meth:`subscribe`. Devices are negotiated in parallel, the attributes of one device
        one after the other.

        :param requests: device, attribute and event type of each subscription
        :raises MamaError: in the modes that raise: the first failure; all subscriptions of this call are cancelled then
        """
        self._check_open()
        subscriptions = [self._new_subscription(*request, callback) for request in requests]
        self._consumer.add(subscriptions, read=mode.reads, raises_errors=mode.raises)
        if mode.waits:
            self._wait_until_ready(subscriptions, mode)
        return subscriptions

    def _new_subscription(
        self, device: str, attribute: str | None, event: EventType | str, callback: Callback | None
    ) -> Subscription:
        name = parse_device(device, self.tango_host)
        kind = event if isinstance(event, EventType) else EVENT_NAMES.get(event.lower())
        if kind is None:
            raise ConfigError(f"unknown Tango event type {event!r}; give one of {', '.join(EVENT_NAMES)}")
        if not all(map(is_name, name.device.split("/"))):
            raise ConfigError(f"invalid device name: {device[:200]!r}")
        found = (attribute or name.attribute or "").lower()
        if kind is EventType.INTERFACE_CHANGE:
            found = ""
        elif not is_name(found):
            raise ConfigError(f"invalid attribute name for {device}: {found[:200]!r}")
        delivery = self._consumer.delivery
        queue = delivery.shared_queue if callback is None else delivery.callback_queue
        return Subscription(self._consumer, replace(name, attribute=None), found, kind, queue, callback)

    def _wait_until_ready(self, subscriptions: Sequence[Subscription], mode: EventSubMode) -> None:
        deadline = time.monotonic() + 10 * self._timeout + 0.05 * len(subscriptions)
        failure: MamaError | None = None
        for subscription in subscriptions:
            if not subscription.ready.wait(max(0.0, deadline - time.monotonic())):
                failure = failure or CallLost(f"the negotiation of {subscription} did not end in time")
            failure = failure or subscription.failure
        if failure is not None and mode.raises:
            for subscription in subscriptions:
                subscription.unsubscribe()
            raise failure

    def _check_open(self) -> None:
        if self._consumer.closed or not self._consumer.is_open:
            raise ClientClosed("this Tango subscriber is not open; call start() or use `with`")
        if self.queue.closed:
            self.queue.take(0)
            raise BackgroundTaskFailed("the subscriber failed")

    @property
    def subscriptions(self) -> list[Subscription]:
        """All subscriptions that were not cancelled."""
        return self._consumer.subscriptions

    def interface_changed(self) -> None:
        """Confirm all subscriptions now, since the attributes of a device are others."""
        self._consumer.interface_changed()

    def check_losses(self) -> None:
        """Ask all servers what they have sent, to find events that were lost and that no later event shows (TG-46).

        Two calls make a check: what one hears of, and has not arrived by the next, is lost. Call it from time to time,
        at least as far apart as an event may be on its way. Servers of Tango 10 tell the counters of their newest
        events: losses are delivered as GAP. Of older servers, change and archive events of up to 4 kB are checked by
        reading the attribute: a value that twice differs from the newest one is delivered as CHECK, which is no proof
        of a loss. Blocks for calls; servers that do not answer are skipped.

        :raises ClientClosed: the subscriber is not open
        """
        self._check_open()
        self._consumer.check_losses()

    def take(self, limit: int = 10_000, timeout: float | None = 0.0) -> list[SubscriptionEvent]:
        """Remove and return events of the subscriptions without a callback, in order of arrival.

        :param limit: largest number of events
        :param timeout: seconds to wait for the first event; None: no limit
        :raises BackgroundTaskFailed: a thread failed, and all events received before have been taken
        """
        return self.queue.take(limit, timeout)

    @property
    def hwm(self) -> int:
        """High-water mark of the newest connection."""
        return self._consumer.connections.hwm

    @property
    def counts(self) -> SubscriberCounts:
        """Totals since the subscriber was made."""
        return self._consumer.counts
