"""MdSeqNum of a topic and sender: unsigned, 32 bits; 1 follows the highest, 0 means not numbered. Pure."""

from __future__ import annotations

from .status import MsgType

HIGHEST = 2**32 - 1
_WRAPPED = 1_000_000  #: numbers at most that are missing where they began at 1 again

#: Messages that repeat data: stamped with the status and the current number.
REPEATING = frozenset({MsgType.INITIAL, MsgType.BOOK_INITIAL, MsgType.RECAP, MsgType.BOOK_RECAP})
#: Messages without data: stamped with the current number, without a status.
SILENT = frozenset({MsgType.REFRESH, MsgType.SYNC_REQUEST, MsgType.MISC, MsgType.NOT_PERMISSIONED, MsgType.NOT_FOUND})
#: All types that have the current number; others take the next one.
UNCOUNTED = REPEATING | SILENT


def next_number(number: int, steps: int = 1) -> int:
    """The number ``steps`` after ``number``; 1 follows the highest."""
    return (number + steps - 1) % HIGHEST + 1


def steps_ahead(last: int, number: int) -> int | None:
    """Steps from ``last`` to ``number``; None: it is equal or lower, so it was counted anew."""
    if number > last:
        return number - last
    wrapped = number + HIGHEST - last
    return wrapped if wrapped < _WRAPPED else None
