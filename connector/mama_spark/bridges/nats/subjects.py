"""Matches subjects with streams, reduces the filters of consumers, and names the consumers of this package. Pure.

What can be published to and what wildcards stand for is decided in :mod:`mama_spark.topics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mama_spark.topics import TopicFilter, covers, overlap

#: Prefix of the names of consumers that this package reads through.
CONSUMER_PREFIX = "mama-"
#: Metadata (NATS ADR-33) of a consumer that only shows the progress of a query; nobody reads through it.
PROGRESS_METADATA = {"mama-spark": "progress"}


class Filters:
    """Subject filters (``a.*.c``, ``a.>``), indexed so that most lookups are one dictionary access."""

    def __init__(self, filters: Iterable[tuple[str, str]] = ()) -> None:
        self._literal: dict[str, str] = {}
        self._by_first: dict[str, list[tuple[TopicFilter, str]]] = {}
        for subject, owner in filters:
            self.add(subject, owner)

    def add(self, subject: str, owner: str) -> None:
        """Add a filter and its owner."""
        wanted = TopicFilter.parse(subject)
        if wanted.literal:
            self._literal[subject] = owner
            return
        first = (wanted.parts[0] if wanted.parts else None) or "*"
        entries = self._by_first.setdefault(first, [])
        if (wanted, owner) not in entries:
            entries.append((wanted, owner))

    def owner(self, subject: str) -> str | None:
        """The owner of a filter that matches ``subject``; None if there is none."""
        found = self._literal.get(subject)
        if found is not None:
            return found
        tokens = subject.split(".")
        for key in (tokens[0], "*"):
            for wanted, owner in self._by_first.get(key, ()):
                if wanted.matches(tokens):
                    return owner
        return None


def filters_of(topics: Iterable[str], subjects: Sequence[str]) -> list[str]:
    """The topics that a stream with these ``subjects`` (none = not known) may hold, without topics that another topic
    covers: the server rejects a consumer with overlapping filters (NATS ADR-34)."""
    kept: list[str] = []
    for topic in dict.fromkeys(topics):
        inside = not subjects or any(overlap(topic, s) for s in subjects)
        if inside and not any(covers(k, topic) for k in kept):
            kept = [k for k in kept if not covers(topic, k)] + [topic]
    return kept
