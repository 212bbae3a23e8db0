"""Subjects, and names of consumers: which subjects a publisher may use, and which stream takes which. Pure.

The server itself stores a publish to ``a.*`` literally and answers 503 to an empty token, so subjects made from rows
are checked before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.message import Bools

#: What the names of consumers that read for us begin with.
CONSUMER_PREFIX = "mama-"
#: Metadata of a consumer that only shows how far a query has come: nobody reads through it.
PROGRESS_METADATA = {"mama-spark": "progress"}
_BAD = r"[\x00-\x20\x7f]|(?:^|\.)(?:\*|>|)(?:\.|$)"


def bad_subjects(subjects: pa.Array) -> Bools:
    """True for each string that cannot be published to: blanks, control characters, empty tokens, wildcards."""
    bad = pc.match_substring_regex(subjects, _BAD)
    result: Bools = np.asarray(pc.fill_null(bad, True).to_numpy(zero_copy_only=False), np.bool_)
    return result


def why_bad(subject: str) -> str:
    """Why a subject cannot be published to, for error messages."""
    if not subject:
        return "empty topic"
    if any(c <= " " or c == "\x7f" for c in subject):
        return f"topic {subject!r} holds a blank or control character"
    tokens = subject.split(".")
    if "" in tokens:
        return f"topic {subject!r} has an empty token"
    return f"topic {subject!r} has a wildcard"


class Filters:
    """Subject filters (``a.*.c``, ``a.>``), indexed so that most lookups are one dictionary access."""

    def __init__(self, filters: Iterable[tuple[str, str]] = ()) -> None:
        self._literal: dict[str, str] = {}
        self._by_first: dict[str, list[tuple[list[str], str]]] = {}
        for subject, owner in filters:
            self.add(subject, owner)

    def add(self, subject: str, owner: str) -> None:
        """``owner`` takes what ``subject`` matches."""
        tokens = subject.split(".")
        if "*" not in tokens and tokens[-1] != ">":
            self._literal[subject] = owner
            return
        first = "*" if tokens[0] in ("*", ">") else tokens[0]
        entries = self._by_first.setdefault(first, [])
        if (tokens, owner) not in entries:
            entries.append((tokens, owner))

    def owner(self, subject: str) -> str | None:
        """The owner of a filter that matches ``subject``; None if there is none."""
        found = self._literal.get(subject)
        if found is not None:
            return found
        tokens = subject.split(".")
        for key in (tokens[0], "*"):
            for pattern, owner in self._by_first.get(key, ()):
                if _matches(pattern, tokens):
                    return owner
        return None


def _matches(pattern: Sequence[str], tokens: Sequence[str]) -> bool:
    if pattern[-1] == ">":
        if len(tokens) < len(pattern):
            return False
        pattern = pattern[:-1]
        tokens = tokens[: len(pattern)]
    return len(pattern) == len(tokens) and all(p in ("*", t) for p, t in zip(pattern, tokens, strict=True))


def overlap(one: str, other: str) -> bool:
    """May a subject match both patterns?"""
    a, b = one.split("."), other.split(".")
    for x, y in zip(a, b, strict=False):
        if ">" in (x, y):
            return True
        if x != y and "*" not in (x, y):
            return False
    return len(a) == len(b)


def covers(wide: str, narrow: str) -> bool:
    """Does every subject that matches ``narrow`` match ``wide``?"""
    pattern, tokens = wide.split("."), narrow.split(".")
    return (pattern[-1] == ">" or tokens[-1] != ">") and _matches(pattern, tokens)


def filters_of(topics: Iterable[str], subjects: Sequence[str]) -> list[str]:
    """Topics that may lie in a stream of these ``subjects`` (none = not known), without those that another covers:
    a consumer takes no filters of which one holds the other."""
    kept: list[str] = []
    for topic in dict.fromkeys(topics):
        inside = not subjects or any(overlap(topic, s) for s in subjects)
        if inside and not any(covers(k, topic) for k in kept):
            kept = [k for k in kept if not covers(topic, k)] + [topic]
    return kept
