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
numbers                         if they have changed (:mod:`mama_spark.tango.value_changes`)
text, states, booleans, enums   if they differ
=============================== ==========================================================================

Archive events may also have a period, after which the value is sent
in any case. Alarm events depend only on the quality.
"""

from __future__ import annotations

import numpy as np

from mama_spark.tango.types import Content, Quality, same_content
from mama_spark.tango.value_changes import has_changed

from .attribute_readings import AttributeReading
from .device import Attribute, Criteria

_ALARMS = frozenset((Quality.ALARM, Quality.WARNING))


class ChangeFilter:
    """Filter of the change or archive events of one attribute. Times are seconds of a monotonic clock.

    :ivar criteria: criteria of this event type
    :ivar due: end of the period; None: there is no period, or no value was sent yet
    """

    __slots__ = ("_attribute", "_last", "_limits", "criteria", "due")

    def __init__(self, attribute: Attribute, criteria: Criteria) -> None:
        self._attribute, self.criteria = attribute, criteria
        self._limits = (criteria.absolute, criteria.relative) if attribute.numeric else (None, None)
        self._last: AttributeReading | None = None
        self.due: float | None = None

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
        self.due = None if self.criteria.period is None else now + self.criteria.period / 1000

    def _differs(self, old: Content, new: Content) -> bool:
        if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):
            return not same_content(old, new)
        return has_changed(old, new, *self._limits)


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
