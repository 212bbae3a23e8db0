"""Matches subjects with streams, reduces the filters of consumers, and names the consumers of this package. Pure.

:mod:`mama_spark.contracts.topics` tells which topics can be published to, and what wildcards match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mama_spark.contracts.topics import TopicFilter, covers, overlap

#: Prefix of the names of consumers that this package reads through.
CONSUMER_PREFIX = "mama-"
#: Name prefixes of consumers that are no readers: those of this package, and those of sources and mirrors.
NO_READERS = (CONSUMER_PREFIX, "JS_SRC_", "JS_MIRROR_")
#: Metadata (NATS ADR-33) of a consumer that only shows the progress of a query, and is not read from.
PROGRESS_METADATA = {"mama-spark": "progress"}


#: Subjects that are requests to the server, but those of its events, which a stream may take.
_REQUESTS, _EVENTS = ("$JS.", "$SYS."), "$JS.EVENT."
#: Behind the prefix of a domain's API, keys of its buckets, which are stored.
_KEYS = r"(\$JS\.[^.]+\.API\.|%s)\$KV\."


def is_request(topic: str, api_prefix: str) -> bool:
    """Whether the server carries out a message on this topic instead of storing it: ``$JS.API.STREAM.DELETE.S`` deletes
    a stream. ``api_prefix`` may be that of another account."""
    if not topic.startswith((*_REQUESTS, api_prefix)) or topic.startswith(_EVENTS):
        return False
    return not re.match(_KEYS % re.escape(api_prefix), topic)


def shows_progress(config: Mapping[str, Any]) -> bool:
    """Whether a consumer of this configuration only shows the progress of a query of ours."""
    return PROGRESS_METADATA.items() <= (config.get("metadata") or {}).items()


def to_allow(subject: str) -> str:
    """The subject, or pattern, that a user's permissions must have: names of consumers and inboxes change each time."""
    parts = subject.split(".")
    if parts[0] == "_INBOX":
        return "_INBOX.>"
    at = next((n for n, part in enumerate(parts) if part.startswith(CONSUMER_PREFIX)), None)
    return subject if at is None else ".".join([*parts[:at], ">"])


class Filters:
    """Subject filters (``a.*.c``, ``a.>``) as a tree of their tokens: a lookup costs the same among any number."""

    def __init__(self, filters: Iterable[tuple[str, str]] = ()) -> None:
        self._literal: dict[str, str] = {}
        self._tree = _Node()
        for subject, owner in filters:
            self.add(subject, owner)

    def add(self, subject: str, owner: str) -> None:
        """Add a filter; an equal one with wildcards keeps its owner."""
        wanted = TopicFilter.parse(subject)
        if wanted.literal:
            self._literal[subject] = owner
            return
        node = self._tree
        for part in wanted.parts:
            node = node.following.setdefault(part, _Node())
        if wanted.rest:
            node.rest = node.rest or owner
        else:
            node.end = node.end or owner

    def owner(self, subject: str) -> str | None:
        """The owner of a filter that matches ``subject``."""
        found = self._literal.get(subject)
        return found if found is not None else self._tree.owner(subject.split("."), 0)


class _Node:
    """The filters that begin with the same tokens.

    :ivar following: the next token -> filters; None = any one token (``*``)
    :ivar end: owner of the filter that ends here
    :ivar rest: owner of the filter that goes on with ``>``
    """

    __slots__ = ("end", "following", "rest")

    def __init__(self) -> None:
        self.following: dict[str | None, _Node] = {}
        self.end: str | None = None
        self.rest: str | None = None

    def owner(self, tokens: Sequence[str], at: int) -> str | None:
        if at == len(tokens):
            return self.end
        for part in (tokens[at], None):
            node = self.following.get(part)
            if node is not None and (found := node.owner(tokens, at + 1)) is not None:
                return found
        return self.rest


def may_store(config: Mapping[str, Any], topic: str) -> bool | None:
    """Whether a stream of this configuration may store messages that match ``topic``, under its own subjects or what
    its ``subject_transform`` makes of them. None: the streams that it mirrors or sources decide."""
    transform = config.get("subject_transform")
    own = any(overlap(topic, subject) for subject in config.get("subjects") or ())
    if transform:
        own = own and not covers(transform.get("src") or ">", topic)
        own = own or overlap(topic, made_by(transform["dest"]))
    if own:
        return True
    return None if config.get("mirror") or config.get("sources") else False


def stores_text(config: Mapping[str, Any]) -> str:
    """The subjects that a stream of this configuration stores, for error messages."""
    taken = ", ".join(config.get("subjects") or ())
    transform = config.get("subject_transform")
    if not transform:
        return f"stores {taken}"
    return f"takes {taken} and stores {transform.get('src') or '>'} as {transform['dest']} (subject_transform)"


def made_by(destination: str) -> str:
    """Filter of the subjects that a subject transform (NATS ADR-30) with this destination makes."""
    made: list[str] = []
    for token in destination.split("."):
        if re.match(r"\{\{\s*(split|slice)", token, re.IGNORECASE):  # it makes several tokens of one
            return ".".join([*made, ">"])
        made.append("*" if re.match(r"\{\{|\$\d", token) else token)
    return ".".join(made)


def filters_of(topics: Iterable[str]) -> list[str]:
    """The topics without those that another topic covers: the server rejects a consumer with overlapping filters (NATS
    ADR-34). A topic that the stream never stores does no harm."""
    unique = {topic: TopicFilter.parse(topic).literal for topic in topics}
    wide: list[str] = []
    for topic, literal in unique.items():
        if not literal and not any(covers(k, topic) for k in wide):
            wide = [k for k in wide if not covers(topic, k)] + [topic]
    kept, covering = set(wide), Filters((topic, topic) for topic in wide)
    return [t for t, literal in unique.items() if t in kept or (literal and covering.owner(t) is None)]
