"""Subscriptions of a recorder to its configured devices and attributes; a thread makes them.

The database resolves patterns of devices, and each device resolves patterns of its attributes. A server that cannot be
reached is called again later; it delays only its own subscriptions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase

from mama_spark.contracts.errors import MamaError
from mama_spark.recording.background_task import BackgroundTask

from ..client.device_proxy import device_names, open_device
from ..client.subscriber import TangoSubscriber
from ..client.subscription import EventSubMode, Subscription
from ..client.subscription_events import SubscriptionEvent, SubscriptionEventKind
from ..client.subscription_states import NO_SUCH_EVENTS
from ..errors import ServerAway
from ..types import EventType
from .settings import TangoRecorderSettings

logger = logging.getLogger("mama_spark")

_RETRY = 5.0  #: seconds until a database or device that did not answer is called again


class DeviceSubscriptions:
    """Subscriptions of one recorder.

    :ivar task: the thread that makes them
    """

    def __init__(self, settings: TangoRecorderSettings, subscriber: TangoSubscriber) -> None:
        self._settings, self._subscriber = settings, subscriber
        self._subscriptions: dict[tuple[str, str, EventType], Subscription] = {}
        self._by_pattern: set[int] = set()  #: ids of subscriptions to attributes that a pattern matched
        self._refused: set[int] = set()  #: of these, those whose refusal was recorded
        self._devices = set(settings.named_devices)
        self._pending = set(self._devices)  #: devices to subscribe to, or to read attributes of again
        self._changed = threading.Event()
        self.task = BackgroundTask(
            "tango-recorder-subscribe", "subscribes to devices", self._subscribe_all, 2 * settings.timeout + 1
        )

    def __len__(self) -> int:
        return len(self._subscriptions)

    @property
    def refused(self) -> int:
        """Number of subscriptions that servers refused when they were last asked."""
        return sum(
            one.failure is not None and not isinstance(one.failure, ServerAway)
            for one in list(self._subscriptions.values())
        )

    def stop(self) -> None:
        """Stop the thread; waits until it has stopped, at most for two timeouts of a call and one second."""
        self.task.stopping.set()
        self._changed.set()
        self.task.stop()

    def interface_changed(self) -> None:
        """Read the attributes of all devices again, since the interface of one changed."""
        self._pending.update(self._devices)
        self._changed.set()

    def accept(self, event: SubscriptionEvent) -> bool:
        """Whether to record a subscription event. A pattern may match attributes that do not send events of this type;
        their subscriptions are tried again, and only the first refusal is recorded."""
        subscription = event.subscription
        if event.kind is not SubscriptionEventKind.ERROR or subscription.id not in self._by_pattern:
            return True
        if not any(error.reason in NO_SUCH_EVENTS for error in event.errors) or subscription.id in self._refused:
            return subscription.id not in self._refused
        self._refused.add(subscription.id)
        reason = event.errors[0].reason
        logger.info(
            "%s is not recorded yet: the attribute sends no such events (%s); trying again", subscription, reason
        )
        return True

    # --- in the thread ---

    def _subscribe_all(self) -> None:
        patterns = self._settings.device_patterns
        next_scan = 0.0
        while not self.task.stopping.is_set():
            self._changed.clear()
            if patterns and time.monotonic() >= next_scan:
                found = self._find_devices(patterns)
                next_scan = time.monotonic() + (self._settings.look_every if found else _RETRY)
            for device in sorted(self._pending):
                if self.task.stopping.is_set():
                    return
                try:
                    self._subscribe_device(device)
                except MamaError as error:
                    logger.info("the attributes of %s cannot be read yet: %s", device, error)
            waits = [_RETRY] if self._pending else []
            waits += [max(0.0, next_scan - time.monotonic())] if patterns else []
            self._changed.wait(min(waits, default=None))

    def _find_devices(self, patterns: Sequence[str]) -> bool:
        """Read the names of devices that match the patterns from the database; returns whether it answered."""
        settings = self._settings
        try:
            for pattern in patterns:
                found = device_names(settings.databases, pattern, settings.timeout)
                if not found:
                    logger.warning("the database %s has no device that matches %s", settings.databases, pattern)
                self._pending.update(found - self._devices)
                self._devices |= found
        except MamaError as error:
            logger.warning("the devices cannot be read from the database %s: %s", settings.databases, error)
            return False
        return True

    def _subscribe_device(self, device: str) -> None:
        settings = self._settings
        names, patterns = settings.attributes_of(device)
        requests = [(device, name, event) for name in names for event in settings.attribute_events]
        if EventType.INTERFACE_CHANGE in settings.events:
            requests.append((device, "", EventType.INTERFACE_CHANGE))
        self._add(requests)
        if patterns:
            with open_device(settings.full_name(device), timeout=settings.timeout) as proxy:
                attributes = [config.name.lower() for config in proxy.attribute_configs()]
            matching = [name for name in attributes if any(fnmatchcase(name, pattern) for pattern in patterns)]
            requests = [(device, name, event) for name in matching for event in settings.attribute_events]
            self._add(requests, by_pattern=True)
        self._pending.discard(device)

    def _add(self, requests: list[tuple[str, str, EventType]], by_pattern: bool = False) -> None:
        new = [request for request in dict.fromkeys(requests) if request not in self._subscriptions]
        if not new or self.task.stopping.is_set():
            return
        full = [(self._settings.full_name(device), name or None, event) for device, name, event in new]
        subscriptions = self._subscriber.subscribe_many(full, mode=EventSubMode.ASYNC_READ)
        self._subscriptions.update(zip(new, subscriptions, strict=True))
        if by_pattern:
            self._by_pattern.update(subscription.id for subscription in subscriptions)
