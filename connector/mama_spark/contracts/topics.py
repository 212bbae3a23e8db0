"""Topics that can be published to, and topics that a topic with wildcards matches: the one rule of all bridges, of the
broker and of the options. Pure.

A topic is one or more parts that are joined by ``.``. It can be published to unless it has an empty part, a wildcard as
a part (``*``, ``>``), a blank or an ASCII control character. Brokers do not check all of this (a NATS server stores a
publish to ``a.*`` literally and answers 503 to an empty part), so topics are checked before anything is sent.

To readers ``*`` stands for one part, and ``>`` at the end for all that follow, at least one part. How long a topic may
be is a limit of each middleware and is checked in its bridge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from .errors import BadTopic, PublishError

if TYPE_CHECKING:
    import pyarrow as pa

    from .message import Bools

#: Part of a topic -> header that carries it: a topic cannot be split back into its parts.
PART_HEADERS = {"root": "Mama-Root", "source": "Mama-Source", "symbol": "Mama-Symbol"}

_BLANK = r"[\x00-\x20\x7f]"
#: Arrow (RE2) and :mod:`re` read it alike: the only difference, ``$`` before a line break at the end, is a blank.
_UNPUBLISHABLE = _BLANK + r"|(?:^|\.)(?:\*|>|)(?:\.|$)"
_unpublishable = re.compile(_UNPUBLISHABLE)
_blank = re.compile(_BLANK)
_bad_filter = re.compile(_BLANK + r"|(?:^|\.)(?:>\.|\.|$)")


def unpublishable(topics: pa.Array) -> Bools:
    """True for each topic that cannot be published to, and for null."""
    import pyarrow.compute as pc  # not at import: options are read where Arrow is not needed

    bad: Bools = pc.fill_null(pc.match_substring_regex(topics, _UNPUBLISHABLE), True).to_numpy(zero_copy_only=False)
    return bad


def why_unpublishable(topic: str) -> str | None:
    """Why a topic cannot be published to, for error messages; None = it can be."""
    if _unpublishable.search(topic) is None:
        return None
    if not topic:
        return "empty topic"
    if _blank.search(topic):
        return f"topic {topic!r} holds a blank or control character"
    if "" in topic.split("."):
        return f"topic {topic!r} has an empty token"
    return f"topic {topic!r} has a wildcard"


def bad_topics(topics: pa.DictionaryArray, why: Callable[[str], str | None]) -> dict[int, PublishError]:
    """The rows whose topic is null or cannot be sent to.

    :param why: why a topic cannot be sent to; None = it can be
    """
    faults = [None if topic is None else why(topic) for topic in topics.dictionary.to_pylist()]
    if not topics.null_count and not any(faults):
        return {}
    texts = ["the topic is null" if code is None else faults[code] for code in topics.indices.to_pylist()]
    return {row: BadTopic(text) for row, text in enumerate(texts) if text}


def present_parts(columns: Iterable[pa.Array]) -> list[pa.Array]:
    """Columns with parts of topics, in which an empty part is null."""
    import pyarrow.compute as pc

    found = [(column, pc.equal(column, "")) for column in columns]
    return [pc.if_else(empty, None, column) if pc.any(empty).as_py() else column for column, empty in found]


def join_parts(parts: Sequence[pa.Array]) -> pa.Array:
    """The :func:`present_parts` of each row joined by ``.``; null if it has none."""
    import pyarrow.compute as pc

    empty = reduce(pc.and_, [part.is_null() for part in parts])
    # the kernel would return no element for a row without any part
    filled = pc.if_else(empty, "", parts[0])
    return pc.if_else(empty, None, pc.binary_join_element_wise(filled, *parts[1:], ".", null_handling="skip"))


def topic_head(prefix: str | None) -> str:
    """The prefix and a dot; empty without a prefix."""
    return f"{prefix}." if prefix else ""


def is_filter(topic: str) -> bool:
    """Whether readers may ask for this topic: as one to publish to, but wildcards are allowed, ``>`` at the end."""
    return _bad_filter.search(topic) is None


def whole_wildcards(topic: str) -> str:
    """The topic with each part that has a wildcard in it as a wildcard: ``a.1*`` was hardly meant as a name."""
    parts = topic.split(".")
    last = len(parts) - 1
    return ".".join(
        part if part in ("*", ">") or not set(part) & {"*", ">"} else ">" if i == last and part.endswith(">") else "*"
        for i, part in enumerate(parts)
    )


class TopicFilter(NamedTuple):
    """A topic with or without wildcards, in parts.

    :ivar parts: None = any one part (``*``)
    :ivar rest: one part or more follow (``>``)
    """

    parts: tuple[str | None, ...]
    rest: bool

    @classmethod
    def parse(cls, topic: str) -> TopicFilter:
        parts = topic.split(".")
        rest = parts[-1] == ">"
        return cls(tuple(None if part == "*" else part for part in (parts[:-1] if rest else parts)), rest)

    @property
    def literal(self) -> bool:
        """Whether there is no wildcard."""
        return not self.rest and None not in self.parts

    def matches(self, parts: Sequence[str]) -> bool:
        """Whether it stands for the topic of these parts."""
        n = len(self.parts)
        if len(parts) <= n if self.rest else len(parts) != n:
            return False
        return all(mine is None or mine == part for mine, part in zip(self.parts, parts, strict=False))

    def regex(self) -> str:
        """A regular expression that matches (the whole of) the topics that it stands for."""
        body = r"\.".join("[^.]+" if part is None else re.escape(part) for part in self.parts)
        return body + ((r"\..+" if self.parts else ".+") if self.rest else "")


def compile_filters(topics: Sequence[str]) -> re.Pattern[str]:
    """One expression whose ``fullmatch`` finds the topics that at least one of ``topics`` stands for; faster than
    :meth:`TopicFilter.matches` where many are asked."""
    return re.compile("|".join(f"(?:{TopicFilter.parse(topic).regex()})" for topic in topics), re.DOTALL)


def overlap(one: str, other: str) -> bool:
    """Whether a topic may match both filters."""
    a, b = one.split("."), other.split(".")
    for x, y in zip(a, b, strict=False):
        if ">" in (x, y):
            return True
        if x != y and "*" not in (x, y):
            return False
    return len(a) == len(b)


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic that matches ``narrow`` matches ``wide``."""
    pattern, parts = TopicFilter.parse(wide), narrow.split(".")
    return (pattern.rest or parts[-1] != ">") and pattern.matches(parts)
