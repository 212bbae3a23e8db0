"""Which readings of an attribute an archive keeps: archive period, absolute and relative change, heartbeat. Pure.

A strategy compares a reading with the last one that was kept, as archive events of Tango do. The first reading is kept,
and each one whose quality, size or error differs. Of the others a reading is kept if

- it has changed, and is at least ``period`` later, or
- it is at least ``every`` later, changed or not.

:mod:`~mama_spark.tango.value_changes` says which numbers have changed, by ``absChange`` and ``relChange`` (percent).
For all else, any difference is a change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from ...contracts.errors import ConfigError
from ...options import camel, duration
from ...options.declare import option
from ...options.tables import parse_table
from ..value_changes import has_changed

_GROUP = "archive"


class Reading(NamedTuple):
    """What is compared of one row.

    :ivar time: of the value, nanoseconds since the epoch
    :ivar quality: None of an error
    :ivar numbers: elements of a number or an array of numbers
    :ivar text: stands for elements that are no numbers, and for those without thresholds
    """

    time: int
    quality: str | None
    numbers: Sequence[float] = ()
    text: str = ""


def text_of(elements: object) -> str:
    """Stands for elements that are no numbers; empty if there are none."""
    return "" if elements is None else hashlib.blake2b(repr(elements).encode(), digest_size=16).hexdigest()


def _change(value: Any) -> float:
    number = float(value)
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError("must be a number, 0 or more")
    return number


@dataclass(frozen=True)
class Strategy:
    """Strategy of the attributes that a pattern matches. Durations are in seconds."""

    period: float = option("duration", duration, 0.0, _GROUP, "Shortest time between two readings that are kept.")
    every: float = option("duration", duration, 0.0, _GROUP, "After it a reading is kept though nothing has changed.")
    abs_change: float = option("number", _change, 0.0, _GROUP, "Least change, in the unit of the attribute.")
    rel_change: float = option("number", _change, 0.0, _GROUP, "Least change, in percent of the reading kept before.")

    def keeps(self, last: Reading | None, now: Reading) -> bool:
        """Whether to keep a reading.

        :param last: that was kept before; None: none was
        """
        if last is None or (last.quality, len(last.numbers)) != (now.quality, len(now.numbers)):
            return True
        since = (now.time - last.time) / 1e9
        if self.every and since >= self.every:
            return True
        return since >= self.period and self._has_changed(last, now)

    def _has_changed(self, last: Reading, now: Reading) -> bool:
        exact = all(isinstance(number, int) for number in (*last.numbers, *now.numbers))
        old, new = (np.array(one.numbers, object if exact else np.float64) for one in (last, now))
        absolute, relative = ((-limit, limit) if limit else None for limit in (self.abs_change, self.rel_change))
        return last.text != now.text or has_changed(old, new, absolute, relative)

    def select(self, last: Reading | None, readings: Iterable[Reading]) -> tuple[list[bool], Reading | None]:
        """Whether to keep each of some readings, which are in order; and the last one that was kept."""
        kept = []
        for now in readings:
            kept.append(self.keeps(last, now))
            last = now if kept[-1] else last
        return kept, last


def parse_strategies(table: Mapping[str, Any]) -> list[tuple[str, Strategy]]:
    """Strategies of the table ``[strategies]``, in the order of the file.

    :param table: ``<pattern>.<key>`` -> value, where a pattern is ``domain/family/member/attribute`` with ``*``, ``?``
    :raises ConfigError: a key is unknown, or a value is invalid; the message names it
    """
    by_pattern: dict[str, dict[str, Any]] = {}
    for name, value in table.items():
        pattern, _, key = name.rpartition(".")
        if pattern.count("/") != 3:
            raise ConfigError(f'[strategies] {name}: must stand in [strategies."domain/family/member/attribute"]')
        by_pattern.setdefault(pattern.lower(), {})[key] = value
    return [
        (pattern, Strategy(**parse_table(Strategy, values, f'[strategies."{pattern}"]', camel)))
        for pattern, values in by_pattern.items()
    ]


def strategy_of(strategies: Sequence[tuple[str, Strategy]], attribute: str) -> Strategy | None:
    """The first strategy whose pattern matches; None: all readings are kept.

    :param attribute: ``domain/family/member/attribute``
    """
    return next((found for pattern, found in strategies if fnmatchcase(attribute.lower(), pattern)), None)
