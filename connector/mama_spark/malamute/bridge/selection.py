"""Encodes topics as the selection of a log query: exact subjects, or patterns. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mama_spark.contracts.topics import TopicFilter
from mama_spark.malamute.protocol.log_query import Selection


def selection_of(topics: Sequence[str], pattern: str | None = None) -> tuple[Selection, tuple[bytes, ...]]:
    """The selection for topics, which may have wildcards, or else the pattern, or all."""
    if not topics:
        return (Selection.ALL, ()) if pattern is None else (Selection.PATTERNS, (pattern.encode(),))
    if not all(TopicFilter.parse(topic).literal for topic in topics):
        return Selection.PATTERNS, tuple(dict.fromkeys(pattern_of(topic) for topic in topics))
    return Selection.SUBJECTS, tuple(dict.fromkeys(topic.encode() for topic in topics))


def pattern_of(topic: str) -> bytes:
    """The pattern that the broker searches subjects for.

    It is not :meth:`TopicFilter.regex`: the broker knows the expressions of CZMQ only and searches in octets, so this
    one is anchored, and a letter of several octets is several of them.
    """
    wanted = TopicFilter.parse(topic)
    body = [b"[^.]+" if part is None else _escaped(part) for part in wanted.parts]
    if wanted.rest:
        return b"^" + b"".join(part + rb"\." for part in body) + b"."
    return b"^" + rb"\.".join(body) + b"$"


def _escaped(part: str) -> bytes:
    return re.sub(rb"([^A-Za-z0-9_\x80-\xff])", rb"\\\1", part.encode())
