"""The one rule for times and durations in options: how they are written, and what they mean. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

NOW = "now"  #: the time of ``load()``
TIMES = (
    "A time is ISO 8601, UTC by default (whatever the time zone of the session): `2026-01-31T12:00:00Z`, "
    "`2026-01-31 13:00+01:00`, `2026-01-31`; or milliseconds since the epoch"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Milliseconds from 1973 to 5138; a number elsewhere counts something else.
_MODERN_MS = range(10**11, 10**14)
_PER_SECOND = {"seconds": 1, "microseconds": 10**6, "nanoseconds": 10**9}
_EXPECTED = "must be now, milliseconds since the epoch, or a time like 2026-01-31T12:00:00Z"


def looks_like_a_time(value: str) -> bool:
    """Whether a text is meant as a time, where words and tables may stand as well."""
    return re.match(r"\d{4}-\d|\d{10,}$", value.strip()) is not None


def time(value: str) -> int:
    """Microseconds since the epoch. The ValueError for a number that is no milliseconds says what it may count."""
    given = value.strip()
    if given.isdecimal():
        return _milliseconds(int(given)) * 1000
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def instant(value: str) -> int | str:
    """A time as :func:`time` reads it, or :data:`NOW`."""
    return NOW if value.strip().lower() == NOW else time(value)


def _milliseconds(number: int) -> int:
    if number == 0 or number in _MODERN_MS:
        return number
    for unit, a_second in _PER_SECOND.items():
        if (meant := number * 1000 // a_second) in _MODERN_MS:
            at = (_EPOCH + timedelta(milliseconds=meant)).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise ValueError(f"counts milliseconds since the epoch; in {unit} it is {at}: write that, or {meant}")
    raise ValueError(_EXPECTED)


@dataclass(frozen=True, slots=True)
class Duration:
    """Parses durations into seconds: ``"500ms"``, ``"30s"``, ``"5m"`` (or ``min``), ``"2h"``, ``"7d"``.

    A number alone is milliseconds in options of Spark, as its users expect; in files and arguments, where readers may
    take it for seconds, it is refused (:attr:`with_unit`).

    :ivar zero: 0, with or without a unit, is allowed
    """

    bare: bool = True
    zero: bool = False

    @property
    def with_unit(self) -> Duration:
        return replace(self, bare=False)

    def __call__(self, value: Any) -> float:
        """Takes text, a number as TOML has it, or a ``timedelta``. ValueError: negative, or 0 where not allowed."""
        number, unit = self._split(value)
        if not (0 <= number < _LONGEST) or (number == 0 and not self.zero) or not (unit or self.bare or number == 0):
            raise ValueError(self._expected)
        return number * _SECONDS[unit or "ms"]

    def _split(self, value: Any) -> tuple[float, str | None]:
        """Number and unit; a number that none fits where it is no duration."""
        if isinstance(value, timedelta):
            return value.total_seconds(), "s"
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value), None
        match = _DURATION.fullmatch(str(value).strip().lower())
        return (float(match[1]), match[2]) if match else (-1.0, None)

    @property
    def _expected(self) -> str:
        kind = "duration" if self.zero else "positive duration"
        bare = "a number alone: milliseconds" if self.bare else "with its unit"
        return f"must be a {kind}, such as 500ms, 30s, 5m, 2h or 7d ({bare})"


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 1e15
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|)")
duration = Duration()
duration_or_none = Duration(zero=True)


def duration_or_off(value: Any) -> float:
    """Seconds of a key in a file; 0 for ``off``."""
    return 0.0 if value == "off" else duration_or_none.with_unit(value)


def milliseconds(value: Any) -> int:
    """A duration of a key in a file, in whole milliseconds, for protocols that count these."""
    return round(1000 * duration.with_unit(value))
