"""The one rule for times in options: how they are written, and what they mean. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

NOW = "now"  #: the time of ``load()``
#: The rule, for the page of options and the text of each.
TIMES = (
    "A time is ISO 8601, in UTC where it names no zone (whatever the time zone of the session is): "
    "`2026-01-31T12:00:00Z`, `2026-01-31 13:00+01:00`, `2026-01-31`; or milliseconds since the epoch"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Milliseconds from 1973 to 5138; a number elsewhere counts something else.
_MODERN_MS = range(10**11, 10**14)
_UNITS = {"seconds": 1, "microseconds": 10**6, "nanoseconds": 10**9}  #: how many are a second
_EXPECTED = "must be now, milliseconds since the epoch, or a time like 2026-01-31T12:00:00Z"


def looks_like_a_time(value: str) -> bool:
    """Whether a text is meant as a time, where words and tables may stand as well."""
    return re.match(r"\d{4}-\d|\d{10,}$", value.strip()) is not None


def time(value: str) -> int:
    """Microseconds since the epoch.

    :raises ValueError: it is no time, or a number that counts no milliseconds, with what it counts probably
    """
    given = value.strip()
    if given.isdecimal():
        return _milliseconds(int(given)) * 1000
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def instant(value: str) -> int | str:
    """As :func:`time`, or :data:`NOW`."""
    return NOW if value.strip().lower() == NOW else time(value)


def _milliseconds(number: int) -> int:
    if number == 0 or number in _MODERN_MS:
        return number
    for unit, a_second in _UNITS.items():
        if (meant := number * 1000 // a_second) in _MODERN_MS:
            at = (_EPOCH + timedelta(milliseconds=meant)).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise ValueError(f"counts milliseconds since the epoch; in {unit} it is {at}: write that, or {meant}")
    raise ValueError(_EXPECTED)
