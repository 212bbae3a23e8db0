"""How the text of an option becomes a value. Each parser raises ``ValueError`` that goes on after "option X"."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson

Parse = Callable[[str], Any]


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def names(what: str) -> Parse:
    """A comma list of at least one ``what``."""

    def parse(value: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in value.split(",") if part.strip())
        if not found:
            raise ValueError(f"must name at least one {what}")
        return found

    return parse


def boolean(value: str) -> bool:
    answer = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    try:
        return answer[value.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false (also on/off, yes/no, 1/0)") from None


def integer(lo: int, hi: int = 2**31 - 1) -> Parse:
    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError(f"must be a whole number from {lo} to {hi}") from None
        if not lo <= number <= hi:
            raise ValueError(f"must be from {lo} to {hi}")
        return number

    return parse


def rate(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number of messages a second") from None
    if not 0 < number < 1e12:
        raise ValueError("must be a positive number of messages a second")
    return number


_UNITS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: str) -> float:
    """Seconds from ``"250"`` (milliseconds), ``"250ms"``, ``"5s"``, ``"2m"``, ``"1h"`` or ``"1d"``.

    :raises ValueError: for anything else, and for zero and negative durations
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|)", value.strip().lower())
    if match is None or float(match[1]) == 0:
        raise ValueError("must be a positive duration: milliseconds, or a number with ms, s, m, h or d, like 5s")
    return float(match[1]) * _UNITS[match[2]]


_SIZES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def byte_size(value: Any) -> int:
    """Octets from a number or ``"64 MiB"``.

    :raises ValueError: for anything else
    """
    match = re.fullmatch(r"(\d+) ?(|KiB|MiB|GiB)", str(value))
    if isinstance(value, bool) or match is None:
        raise ValueError("must be octets, or such as '64 MiB'")
    return int(match[1]) * _SIZES[match[2]]


def one_of(*words: str) -> Parse:
    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            near = difflib.get_close_matches(word, words, 1)
            raise ValueError(f"must be one of {', '.join(words)}" + (f"; did you mean {near[0]}?" if near else ""))
        return word

    return parse


def topic_name(value: str) -> str:
    """A topic to publish below: no blanks, wildcards or empty parts."""
    name = text(value)
    parts = name.split(".")
    if any(c.isspace() for c in name) or not all(parts) or {"*", ">"} & set(parts):
        raise ValueError("must be a topic without blanks, wildcards and empty parts")
    return name


def topic_patterns(value: str) -> tuple[str, ...]:
    """A comma list of topics, which may have wildcards: ``*`` one part, ``>`` all that follow."""
    found: tuple[str, ...] = names("topic")(value)
    for topic in found:
        parts = topic.split(".")
        if any(c.isspace() for c in topic) or not all(parts) or ">" in parts[:-1]:
            raise ValueError(f"has the bad topic {topic!r}: no blanks, no empty parts, and > only at the end")
    return found


Offsets = str | tuple[tuple[str, int], ...]  #: a word, or the first sequence to read of each stream


def offsets(*words: str) -> Parse:
    """One of ``words``, or JSON: ``{"STREAM": 17}``, the first sequence to read; -2 = earliest, -1 = latest."""
    word = one_of(*words)

    def parse(value: str) -> Offsets:
        if not value.strip().startswith("{"):
            return str(word(value))
        try:
            table = orjson.loads(value)
        except orjson.JSONDecodeError as e:
            raise ValueError(f"is not JSON ({e})") from None
        for stream, at in table.items():
            if isinstance(at, bool) or not isinstance(at, int) or at < -2:
                raise ValueError(f"wants a sequence, -1 (latest) or -2 (earliest) for {stream!r}")
        if not table:
            raise ValueError("names no stream")
        return tuple(sorted(table.items()))

    return parse


def instant(value: str) -> int:
    """Microseconds since the epoch from milliseconds since the epoch, or ISO 8601 (UTC where no zone is given)."""
    if re.fullmatch(r"\d{1,16}", value.strip()):
        return int(value) * 1000
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("must be milliseconds since the epoch, or a time like 2026-01-31T12:00:00Z") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1_000_000)
