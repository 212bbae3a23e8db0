"""Parsers: the text of an option, or the value of a key in a file, becomes a value. Pure.

Each raises ``ValueError`` with a text that continues "option X" or "[table] key".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar

import orjson

from ..contracts.redaction import is_content
from ..contracts.topics import is_filter, whole_wildcards, why_unpublishable
from .times import NOW, looks_like_a_time, time

Parse = Callable[[Any], Any]
Choice = TypeVar("Choice", bound=Enum)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def topic_prefix(value: Any) -> str:
    """Put before topics with a dot between; dots that it ends with are not given twice."""
    return text(text(value).rstrip("."))


def file_path(value: Any) -> str:
    path = text(value)
    if is_content(path):
        raise ValueError("must be the path of a file, and is the content of one")
    return path


def nonempty_text(value: Any) -> str:
    """A text as it is, with the blanks around it."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def names(what: str) -> Parse:
    """A comma list of at least one ``what``."""

    def parse(value: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in value.split(",") if part.strip())
        if not found:
            raise ValueError(f"must name at least one {what}")
        return found

    return parse


def some_names(value: Any) -> tuple[str, ...]:
    """A list of texts or a text with commas, as the names in it, each once; at least one."""
    found = tuple(part.strip() for part in (value.split(",") if isinstance(value, str) else value) if part.strip())
    if not found:
        raise ValueError("must name at least one")
    return tuple(dict.fromkeys(found))


def plain_name(value: Any) -> str:
    """A name of letters, digits, ``-`` and ``_``."""
    if not isinstance(value, str) or not _PLAIN.fullmatch(value):
        raise ValueError("must be letters, digits, - and _")
    return value


def boolean(value: Any) -> bool:
    answer = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    try:
        return answer[str(value).strip().lower()]
    except KeyError:
        raise ValueError("must be true or false (also on/off, yes/no, 1/0)") from None


def true_or_false(value: Any) -> bool:
    """The TOML boolean, which needs no other spellings."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def integer(lo: int, hi: int = 2**31 - 1) -> Parse:
    """A whole number, as text or as TOML has it."""

    def parse(value: Any) -> int:
        try:
            number = int(value.strip()) if isinstance(value, str) else value
        except ValueError:
            number = None
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"must be a whole number from {lo} to {hi}")
        if not lo <= number <= hi:
            raise ValueError(f"must be from {lo} to {hi}")
        return number

    return parse


def texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("must be a list of texts")
    return tuple(value)


def member(choices: type[Choice]) -> Callable[[Any], Choice]:
    def parse(value: Any) -> Choice:
        try:
            return choices(value)
        except ValueError:
            raise ValueError(f"must be one of {', '.join(choice.value for choice in choices)}") from None

    return parse


def string(value: Any) -> str:
    """Any text, also an empty one."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def real_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    return value


def rate(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number of messages a second") from None
    if not 0 < number < 1e12:
        raise ValueError("must be a positive number of messages a second")
    return number


_FIELD = re.compile(r"(?P<name>[^:,]*)(?::(?P<fid>\d*)(?::(?P<type>\w+(?:\(\d+\))?))?)?", re.ASCII)


def mama_fields(value: str) -> tuple[tuple[str, int | None, str | None], ...]:
    """``name[:fid[:type]]``, separated by commas: names, numbers and types of fields; None = not given."""
    found: dict[str, tuple[str, int | None, str | None]] = {}
    for part in value.split(","):
        match = _FIELD.fullmatch(part.strip())
        if match is None or not (name := match["name"].strip()):
            raise ValueError("must be fields like wBidPrice:109:PRICE(2), separated by commas")
        fid = int(match["fid"]) if match["fid"] else None
        if fid is not None and not 0 < fid < 65_536:
            raise ValueError(f"has the number {fid} for {name!r}; numbers of fields are from 1 to 65535")
        if name in found:
            raise ValueError(f"names {name!r} twice")
        found[name] = (name, fid, match["type"])
    return tuple(found.values())


_SIZES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def byte_size(value: Any) -> int:
    """Bytes from a number or ``"64 MiB"``."""
    match = re.fullmatch(r"(\d+) ?(|KiB|MiB|GiB)", str(value))
    if isinstance(value, bool) or match is None:
        raise ValueError("must be a number of bytes, or such as '64 MiB'")
    return int(match[1]) * _SIZES[match[2]]


def positive_size(value: Any) -> int:
    if not (size := byte_size(value)):
        raise ValueError("must be a number of bytes above 0, or such as '64 MiB'")
    return size


def metrics_setup(value: Any) -> str:
    """``off``, ``otel`` or ``module:function``."""
    word = str(value).strip()
    if word.lower() in ("off", "otel"):
        return word.lower()
    module, colon, function = word.partition(":")
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError("must be off, otel or module:function")
    return word


#: A ``traceparent`` of W3C trace context: version, trace, parent, flags.
TRACEPARENT = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$"
_NO_TRACEPARENT = re.compile(r"^(ff|00-.{52}.|.{2}-0{32}|.{35}-0{16})")


def is_traceparent(text: str) -> bool:
    """Whether it is valid (W3C Trace Context, 3.2.2)."""
    return re.match(TRACEPARENT, text, re.ASCII) is not None and _NO_TRACEPARENT.match(text) is None


def trace_context(value: Any) -> str:
    """``off``, ``true``, a ``traceparent``, or the name of a column."""
    word = str(value).strip()
    if not word:
        raise ValueError("must be off, true, a traceparent, or the name of a column")
    return {"false": "off"}.get(word.lower(), word.lower()) if word.lower() in ("off", "false", "true") else word


def nearest(name: str, known: Iterable[str], label: str = "did you mean") -> str:
    """``"; did you mean 'X'?"`` for the known name nearest to ``name``, in whatever case, or nothing."""
    by_low = {k.lower(): k for k in known}
    near = get_close_matches(name.lower(), by_low, 1, 0.6)
    return f"; {label} {by_low[near[0]]!r}?" if near else ""


def one_of(*words: str) -> Parse:
    def parse(value: Any) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}{nearest(word, words)}")
        return word

    return parse


def topic_name(value: str) -> str:
    """A topic to publish below: no blanks, wildcards or empty parts."""
    name = text(value)
    if why_unpublishable(name) is not None:
        raise ValueError("must be a topic without blanks, wildcards and empty parts")
    return name


def single_token(value: Any) -> str:
    name = text(value)
    if why_unpublishable(name) is not None or "." in name:
        raise ValueError("must be one word without blanks, dots and wildcards")
    return name


def subject_prefix(value: Any) -> str:
    """A prefix of subjects, with or without the dot at its end."""
    try:
        return topic_name(text(value).removesuffix("."))
    except ValueError:
        raise ValueError("must be the beginning of a subject without blanks, wildcards and empty parts") from None


def topic_patterns(value: str) -> tuple[str, ...]:
    """A comma list of topics, which may have wildcards: ``*`` one part, ``>`` all that follow."""
    found: tuple[str, ...] = names("topic")(value)
    for topic in found:
        if not is_filter(topic):
            raise ValueError(f"has the bad topic {topic!r}: no blanks, no empty parts, and > only at the end")
        if (meant := whole_wildcards(topic)) != topic:
            raise ValueError(
                f"has the topic {topic!r}, where a wildcard is only a piece of a part, so it is a mere name: "
                f"* stands for one whole part, > for all that follow. Read {meant!r} and filter the rows"
            )
    return found


#: A word, the first sequence to read of each stream, or a time in microseconds since the epoch.
Offsets = str | int | tuple[tuple[str, int], ...]


def field_columns(value: str) -> tuple[tuple[str, str], ...]:
    """``name type, name type``: pairs of a name and a type, which is empty where there is none."""
    columns = []
    for part in _OUTSIDE_BRACKETS.split(value):
        name, _, kind = part.strip().partition(" ")
        if not name:
            raise ValueError("must be names and types of columns, separated by commas: wBidPrice double, wAskSize int")
        columns.append((name.strip("`"), kind.strip()))
    names = [name.lower() for name, _ in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"must name each column once, and names {twice[0]} twice")
    return tuple(columns)


#: A comma that is not within ``decimal(10, 2)``.
_OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")


def offsets(*words: str, times: bool = False) -> Parse:
    """One of ``words``, or JSON: ``{"STREAM": 17}``, the first sequence to read; -2 = earliest, -1 = latest; with
    ``times`` also :data:`NOW`, or a time."""
    word = one_of(*words, *([NOW] if times else []))

    def parse(value: str) -> Offsets:
        if times and looks_like_a_time(value):
            return time(value)
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
