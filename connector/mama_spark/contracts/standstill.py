"""Rules that leave a standstill of this process (stopped, suspended, starved) out of measured silence. Pure.

A process that stands still reads no messages, so their senders were not silent. Code that counts silence first reads
what has come, judges time-outs as of before that read (:meth:`.SendLoop.receive`), and applies these rules.
"""

from __future__ import annotations

MAX_STEP = 1.0  #: maximum seconds between two looks, and of silence counted between them
MAX_OVERRUN = 5.0  #: seconds: if a wait overruns its time-out by more, the process was suspended
#: The same for a wait until a heartbeat of Tango is missed: servers send one every 9 s, and 10 s are its age at most.
HEARTBEAT_OVERRUN = 0.5


def silent_for(since: float, now: float) -> float:
    """Seconds of silence between two looks, which are at most a fraction of :data:`MAX_STEP` apart as a rule."""
    return min(max(0.0, now - since), MAX_STEP)


def missed_looks(took: float) -> bool:
    """Whether the time between two looks, usually :data:`MAX_STEP` at most, is too long to count as silence."""
    return took > 1.5 * MAX_STEP


def stood_still(took: float, meant: float, overrun: float = MAX_OVERRUN) -> bool:
    """Whether a wait for ``meant`` seconds took so long that the process did not run."""
    return took > meant + overrun
