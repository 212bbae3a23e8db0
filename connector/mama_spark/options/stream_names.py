"""Names of several streams in one option: ``orders-{0..7}``, and patterns. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..contracts.errors import ConfigError
from .values import text

#: More streams are refused: a server that keeps so many has other limits.
MOST_STREAMS = 1_000

_RANGE = re.compile(r"([^{}]*)\{(\d+)\.\.(\d+)\}([^{}]*)")
_NAME = re.compile(r"[^\s.*>/\\{}]+")


@dataclass(frozen=True, slots=True)
class StreamRange:
    """Streams that differ by a number, from 0 on: ``orders-{0..7}``."""

    before: str
    count: int
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{{0..{self.count - 1}}}{self.after}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name(number) for number in range(self.count))

    def name(self, number: int) -> str:
        return f"{self.before}{number}{self.after}"


def stream_range(value: str) -> StreamRange:
    found = _RANGE.fullmatch(text(value))
    if found is None or int(found[2]) != 0 or not _NAME.fullmatch(found[1] + "0" + found[4]):
        raise ValueError("must be names with a range of numbers from 0 on, such as orders-{0..7}")
    count = int(found[3]) + 1
    if count > MOST_STREAMS:
        raise ValueError(f"names {count:,} streams, and {MOST_STREAMS:,} at most are allowed")
    return StreamRange(found[1], count, found[4])


def stream_patterns(value: str) -> tuple[str, ...]:
    """Names, separated by commas, in which ``{0..7}`` stands for numbers and ``*`` for anything."""
    found: list[str] = []
    for part in filter(None, (one.strip() for one in text(value).split(","))):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            names = [part]
        else:
            first, last = int(numbers[2]), int(numbers[3])
            if not 0 <= last - first < MOST_STREAMS:
                raise ValueError(f"names a range that is empty or has more than {MOST_STREAMS:,} streams: {part}")
            names = [f"{numbers[1]}{number}{numbers[4]}" for number in range(first, last + 1)]
        for name in names:
            if not _NAME.fullmatch(name.replace("*", "x")):
                raise ValueError(f"must be names of streams, such as orders-{{0..7}} or orders-*, got {part!r}")
        found += names
    if not found:
        raise ValueError("must name at least one stream")
    return tuple(dict.fromkeys(found))


def chosen_streams(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """The streams of :func:`matching_streams`.

    :raises ConfigError: there is none
    """
    found = matching_streams(patterns, names)
    if not found:
        raise ConfigError(f"option streams: there is no stream {', '.join(patterns)}")
    return found


def matching_streams(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """The names that one of :func:`stream_patterns` matches, sorted."""
    exact = {pattern for pattern in patterns if "*" not in pattern}
    others = [re.compile(".*".join(map(re.escape, pattern.split("*")))) for pattern in patterns if "*" in pattern]
    return sorted(name for name in names if name in exact or any(one.fullmatch(name) for one in others))
