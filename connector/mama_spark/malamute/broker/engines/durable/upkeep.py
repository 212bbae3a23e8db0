"""What is done to a store while its stream is idle: messages that are too old are removed, and its file is closed."""

from __future__ import annotations

import logging
import time

from ... import freed_memory
from .store import MessageStore
from .store_reader import StoreFull

log = logging.getLogger(__name__)

#: Seconds between checks of the age of messages while the engine is idle.
RETENTION_INTERVAL = 1.0
#: Seconds without a command after which the file is closed, if it has nothing that will expire.
REST = 10.0


def ages(store: MessageStore) -> bool:
    """Whether there are messages that will be removed, because of their age or because there are too many."""
    return store.overdue or (store.retention.age_us is not None and store.last >= store.first)


class StoreUpkeep:
    """:param name: of the stream"""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._rests_at: float | None = None  # monotonic time when the file is closed; None = not yet known

    def worked(self) -> None:
        """The stream was not idle."""
        self._rests_at = None

    def retain(self, store: MessageStore, now: int) -> float | None:
        """Remove messages that are too old; seconds until the next check.

        :param now: microseconds since the epoch
        """
        if not ages(store):
            return None
        try:
            store.retain(max(now, store.last_time))
        except StoreFull as e:
            log.warning("stream %r: old messages cannot be removed now: %s", self._name, e)
        return 0.0 if store.overdue else RETENTION_INTERVAL

    def rest(self, store: MessageStore) -> float | None:
        """Close the file if nothing was done for a while; seconds until then."""
        if store.resting or ages(store):
            return None
        now = time.monotonic()
        if self._rests_at is None:
            self._rests_at = now + REST
        if now < self._rests_at:
            return self._rests_at - now
        store.rest()
        freed_memory.trim()
        return None
