"""A process that stood still (stopped, suspended with its machine, or starved) has not waited for anybody. Pure.

What others sent meanwhile is not read yet, so it is not their silence: whoever counts silence takes what came first,
judges time-outs as of before that look (:meth:`.SendLoop.receive`), and leaves such a time out by the rules here.
"""

from __future__ import annotations

MAX_STEP = 1.0  #: seconds of silence that the time between two looks counts at most
MAX_OVERRUN = 5.0  #: seconds: if a wait overruns its time-out by more, the process was suspended


def silent_for(since: float, now: float) -> float:
    """Seconds of silence between two looks, which are at most a fraction of :data:`MAX_STEP` apart as a rule."""
    return min(max(0.0, now - since), MAX_STEP)


def stood_still(took: float, meant: float, overrun: float | None = None) -> bool:
    """Whether a wait that was meant for ``meant`` seconds took so long that the process did not run.

    :param overrun: seconds by which it may be longer; None = :data:`MAX_OVERRUN`
    """
    return took > meant + (MAX_OVERRUN if overrun is None else overrun)
