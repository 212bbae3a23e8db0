"""A process that stood still (stopped, suspended with its machine, or starved) has not waited for anybody. Pure.

It has not read yet what others sent meanwhile, so that is not their silence: code that counts silence takes what came
first, judges time-outs as of before that look (:meth:`.SendLoop.receive`), and leaves out such a time by these rules.
"""

from __future__ import annotations

MAX_STEP = 1.0  #: seconds between two looks, and of silence that the time between them counts, at most
MAX_OVERRUN = 5.0  #: seconds: if a wait overruns its time-out by more, the process was suspended
#: The same for a wait until a heartbeat of Tango is missed: servers send one every 9 s, and 10 s are its age at most.
HEARTBEAT_OVERRUN = 0.5


def silent_for(since: float, now: float) -> float:
    """Seconds of silence between two looks, which are at most a fraction of :data:`MAX_STEP` apart as a rule."""
    return min(max(0.0, now - since), MAX_STEP)


def missed_looks(took: float) -> bool:
    """Whether so long passed between two looks, :data:`MAX_STEP` apart at most, that none of it is silence."""
    return took > 1.5 * MAX_STEP


def stood_still(took: float, meant: float, overrun: float = MAX_OVERRUN) -> bool:
    """Whether a wait that was meant for ``meant`` seconds took so long that the process did not run."""
    return took > meant + overrun
