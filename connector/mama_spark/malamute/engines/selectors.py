"""Who subscribed to what, and which subjects match. Pure."""

from __future__ import annotations

from ..patterns import Matcher
from .readers import Reader

#: Subjects whose receivers are remembered: most streams have few subjects, and matching is most of the work.
REMEMBERED = 4096


class Selectors:
    """Patterns with their readers."""

    def __init__(self) -> None:
        self._matcher = Matcher()
        self._readers: dict[bytes, dict[Reader, None]] = {}  # pattern -> its readers, in order of subscription
        self._matching: dict[bytes, tuple[bytes, ...]] = {}  # subject -> patterns
        self._receivers: dict[bytes, tuple[Reader, ...]] = {}  # subject -> readers

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, pattern: bytes, reader: Reader) -> None:
        """:raises BadPattern: it is refused; nothing has changed"""
        self._matcher.add(pattern)
        self._readers.setdefault(pattern, {})[reader] = None
        self._forget()

    def remove(self, reader: Reader) -> None:
        """From all patterns."""
        for pattern in reader.patterns:
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

    def receivers(self, subject: bytes) -> tuple[Reader, ...]:
        """Each reader once, however many of its patterns match."""
        found = self._receivers.get(subject)
        if found is None:
            if len(self._receivers) >= REMEMBERED:
                self._receivers.clear()
            readers = dict.fromkeys(r for pattern in self.matching(subject) for r in self._readers[pattern])
            found = self._receivers[subject] = tuple(readers)
        return found
