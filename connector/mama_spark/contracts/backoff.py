"""Exponential back-off: how long to wait between the attempts of a loop that retries or polls. Pure.

A :class:`Backoff` is the schedule, a constant of the module that retries; :class:`Delays` is one run through it::

    delays = RECONNECT.delays()
    while not (answer := try_once()):
        sleep(delays.next())

A run starts again at the first delay when something succeeded (:meth:`Delays.reset`): what fails after that is a new
outage.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A schedule of delays in seconds.

    :param first: the delay after the first failed attempt
    :param most: no delay is longer
    :param factor: each delay is that many times the one before; 1 = all are ``first``
    :param jitter: the part of each delay that is random: 0 = none, 1 = anything from 0 to the whole delay (AWS calls it
        full jitter); keeps clients that failed together from coming back together
    :raises ValueError: a delay below 0, ``most`` below ``first``, a factor below 1, or a jitter outside 0 .. 1
    """

    first: float
    most: float
    factor: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.first <= self.most and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise ValueError(f"no schedule of delays: {self!r}")

    def delay(self, attempt: int, uniform: Callable[[], float] = random.random) -> float:
        """Seconds to wait after failed attempt ``attempt`` (0 = the first).

        :param uniform: random numbers from 0 to 1
        """
        try:
            delay = min(self.first * self.factor ** max(attempt, 0), self.most)
        except OverflowError:
            delay = self.most if self.first else 0.0
        return delay * (1 - self.jitter * uniform()) if self.jitter else delay

    def delays(self) -> Delays:
        """Begin a run through the schedule."""
        return Delays(self)


class Delays:
    """One run through a :class:`Backoff`: counts the failed attempts since the last success."""

    __slots__ = ("_attempt", "_backoff")

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._attempt = 0

    def next(self) -> float:
        """Seconds to wait now; the next call returns the delay after it."""
        delay = self._backoff.delay(self._attempt)
        self._attempt += 1
        return delay

    def reset(self) -> None:
        """Something succeeded: the next delay is the first one again."""
        self._attempt = 0


#: Between two attempts to reach a middleware that does not answer.
RECONNECT = Backoff(0.1, 2.0)
