"""Who subscribed to what, and which subjects match. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from mama_spark.malamute.protocol.patterns import Matcher

R = TypeVar("R", bound=Hashable)

#: Subjects whose receivers are remembered: most streams have few subjects, and matching is most of the work.
REMEMBERED = 4096


class SubscriptionIndex(Generic[R]):
    """Patterns with their readers: clients, or whatever an engine keeps for each of them."""

    def __init__(self) -> None:
        self._matcher = Matcher()
        self._readers: dict[bytes, dict[R, None]] = {}  # pattern -> its readers, in order of subscription
        self._matching: dict[bytes, tuple[bytes, ...]] = {}  # subject -> patterns
        self._receivers: dict[bytes, tuple[R, ...]] = {}  # subject -> readers

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, pattern: bytes, reader: R) -> None:
        """Idempotent.

        :raises BadPattern: it is refused; nothing has changed
        """
        self._matcher.add(pattern)
        self._readers.setdefault(pattern, {})[reader] = None
        self._forget()

    def remove(self, reader: R, patterns: Iterable[bytes]) -> None:
        """From these patterns, all of which it has."""
        for pattern in patterns:
            readers = self._readers[pattern]
            del readers[reader]
            if not readers:
                del self._readers[pattern]
                self._matcher.discard(pattern)
        self._forget()

    def _forget(self) -> None:
        self._matching.clear()
        self._receivers.clear()

    def matching(self, subject: bytes) -> tuple[bytes, ...]:
        """Patterns that match."""
        found = self._matching.get(subject)
        if found is None:
            if len(self._matching) >= REMEMBERED:
                self._matching.clear()
            found = self._matching[subject] = tuple(self._matcher.match(subject))
        return found

    def receivers(self, subject: bytes) -> tuple[R, ...]:
        """Each reader once, however many of its patterns match."""
        found = self._receivers.get(subject)
        if found is None:
            if len(self._receivers) >= REMEMBERED:
                self._receivers.clear()
            readers = dict.fromkeys(r for pattern in self.matching(subject) for r in self._readers[pattern])
            found = self._receivers[subject] = tuple(readers)
        return found
