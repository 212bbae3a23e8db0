"""Filters that select the values to send as events by the event criteria of an attribute (TG-06). Pure.

They detect events as cppTango does. A new value is compared with the last *sent* value, not with the last set value:

=============================== ==========================================================================
last sent value, new value      sent
=============================== ==========================================================================
none was sent yet               yes
quality differs                 yes
both INVALID                    no
an error, then a value          yes
a value, then an error          yes
two errors                      if they differ
dimensions differ               yes
NaN and a number, either way    yes
NaN and NaN                     no
numbers, no thresholds          if they differ
numbers, ``abs_change``         if any element differs by the threshold or more
numbers, ``rel_change``         the same in percent of the sent value; from 0 any change
text, states, booleans, enums   if they differ
=============================== ==========================================================================

If there are two thresholds, one of them suffices. Archive events may also have a period, after which the value is sent
in any case. Alarm events depend only on the quality.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mama_spark.tango.types import Content, Quality, same_content

from .attribute_readings import AttributeReading
from .device import Attribute, Criteria

_ALARMS = frozenset((Quality.ALARM, Quality.WARNING))


class ChangeFilter:
    """Filter of the change or archive events of one attribute. Times are seconds of a monotonic clock.

    :param criteria: criteria of this event type
    :ivar due: end of the period; None: there is no period, or no value was sent yet
    """

    __slots__ = ("_attribute", "_criteria", "_last", "_thresholds", "due")

    def __init__(self, attribute: Attribute, criteria: Criteria) -> None:
        self._attribute, self._criteria = attribute, criteria
        self._thresholds = attribute.numeric and bool(criteria.absolute or criteria.relative)
        self._last: AttributeReading | None = None
        self.due: float | None = None

    @property
    def last(self) -> AttributeReading | None:
        """The last sent value."""
        return self._last

    def accepts(self, reading: AttributeReading, now: float) -> bool:
        """Whether to send this value. If so, the caller then calls :meth:`was_sent`.

        :param now: seconds of a monotonic clock
        """
        last = self._last
        if last is None or reading.quality is not last.quality or bool(reading.errors) is not bool(last.errors):
            return True
        if reading.errors:
            return reading.errors != last.errors
        if self.due is not None and now >= self.due:
            return True
        if reading.empty:
            return False
        if reading.r_dim != last.r_dim or reading.w_dim != last.w_dim:
            return True
        kind = self._attribute.kind
        return self._differs(last.content(kind), reading.content(kind))

    def was_sent(self, reading: AttributeReading, now: float) -> None:
        """Note that this value was sent; later values are compared with it."""
        self._last = reading
        self.due = None if self._criteria.period is None else now + self._criteria.period / 1000

    def _differs(self, old: Content, new: Content) -> bool:
        if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):
            return not same_content(old, new)
        if not self._thresholds:
            return not bool(np.array_equal(old, new, equal_nan=old.dtype.kind == "f"))
        return _exceeds_thresholds(old, new, self._criteria)


def _exceeds_thresholds(old: npt.NDArray[Any], new: npt.NDArray[Any], criteria: Criteria) -> bool:
    """Whether any element differs by a threshold or more."""
    if old.dtype.kind == "f":
        old_nan, new_nan = np.isnan(old), np.isnan(new)
        if (old_nan != new_nan).any():
            return True
        old, new = old[~old_nan], new[~new_nan]
    before = old.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        delta = _difference(old, new)
        if criteria.absolute is not None and _outside_limits(delta, criteria.absolute):
            return True
        if criteria.relative is None:
            return False
        undefined = (before == 0) | np.isinf(before)
        percent = np.where(undefined, np.sign(delta) * np.inf, delta / np.abs(before) * 100)
    return _outside_limits(percent[delta != 0], criteria.relative)


def _difference(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if old.dtype.kind != "f" and old.dtype.itemsize == 8:  # computed exactly, since a double has fewer digits
        exact: npt.NDArray[np.float64] = (new.astype(object) - old.astype(object)).astype(np.float64)
        return exact
    found: npt.NDArray[np.float64] = new.astype(np.float64) - old.astype(np.float64)
    return np.where(new == old, 0.0, found)  # 0 for two equal infinities too


def _outside_limits(numbers: npt.NDArray[np.float64], limits: tuple[float, float]) -> bool:
    return bool(((numbers <= limits[0]) | (numbers >= limits[1])).any())


class AlarmFilter:
    """Filter of the alarm events of one attribute. It accepts values whose quality changed to, from or between ALARM
    and WARNING, and values that follow errors or the reverse."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Quality, bool] = (Quality.VALID, False)

    def accepts(self, reading: AttributeReading) -> bool:
        """Whether to send this value. The caller then calls :meth:`was_seen` in any case."""
        quality, failed = self._last
        if bool(reading.errors) is not failed:
            return True
        return reading.quality is not quality and not _ALARMS.isdisjoint((reading.quality, quality))

    def was_seen(self, reading: AttributeReading) -> None:
        """Note this value; the next one is compared with it."""
        self._last = (reading.quality, bool(reading.errors))
