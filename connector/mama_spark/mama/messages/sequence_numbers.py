"""Numbers of the messages of a topic and sender (MdSeqNum): unsigned, 32 bits, and 1 follows the highest. Pure.

0 means that nothing is numbered.
"""

from __future__ import annotations

HIGHEST = 2**32 - 1
_WRAPPED = 1_000_000  #: numbers at most that are missing where they began at 1 again


def next_number(number: int, steps: int = 1) -> int:
    """The number so many after this one."""
    return (number + steps - 1) % HIGHEST + 1


def steps_ahead(last: int, number: int) -> int | None:
    """How many numbers after ``last``; None: it is equal, or lower, so it was counted anew."""
    if number > last:
        return number - last
    wrapped = number + HIGHEST - last
    return wrapped if wrapped < _WRAPPED else None
