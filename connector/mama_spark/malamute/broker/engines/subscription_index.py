"""Finds the subscribers of a subject by their patterns. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from mama_spark.malamute.protocol.patterns import Matcher

R = TypeVar("R", bound=Hashable)

#: Most subjects whose receivers are cached: most streams have few subjects, and matching is expensive.
CACHED_SUBJECTS = 4096


class SubscriptionIndex(Generic[R]):
    """The subscribers are clients, or objects of an engine for them."""

    def __init__(self) -> None:
        self._matcher = Matcher()
        self._subscribers: dict[bytes, dict[R, None]] = {}  # pattern -> its subscribers, in order of subscription
        self._matching: dict[bytes, tuple[bytes, ...]] = {}  # subject -> patterns
        self._receivers: dict[bytes, tuple[R, ...]] = {}  # subject -> subscribers

    def add(self, pattern: bytes, subscriber: R) -> None:
        """Idempotent.

        :raises BadPattern: it is refused; nothing has changed
        """
        self._matcher.add(pattern)
        self._subscribers.setdefault(pattern, {})[subscriber] = None
        self._forget()

    def remove(self, subscriber: R, patterns: Iterable[bytes]) -> None:
        """The subscriber must have all these patterns."""
        for pattern in patterns:
            subscribers = self._subscribers[pattern]
            del subscribers[subscriber]
            if not subscribers:
                del self._subscribers[pattern]
                self._matcher.discard(pattern)
        self._forget()

    def _forget(self) -> None:
        self._matching.clear()
        self._receivers.clear()

    def matching(self, subject: bytes) -> tuple[bytes, ...]:
        found = self._matching.get(subject)
        if found is None:
            if len(self._matching) >= CACHED_SUBJECTS:
                self._matching.clear()
            found = self._matching[subject] = tuple(self._matcher.match(subject))
        return found

    def receivers(self, subject: bytes) -> tuple[R, ...]:
        """Each once, however many of its patterns match."""
        found = self._receivers.get(subject)
        if found is None:
            if len(self._receivers) >= CACHED_SUBJECTS:
                self._receivers.clear()
            subscribers = dict.fromkeys(r for pattern in self.matching(subject) for r in self._subscribers[pattern])
            found = self._receivers[subject] = tuple(subscribers)
        return found
