"""Finds in the rates of a flight log where a write stood still although messages waited. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]

#: µs; what is shorter may be the time between two acknowledgements.
SHORTEST = 1_000_000


def standstills(timeline: Sequence[Row], width: int) -> list[Row]:
    """The times, in order, in which messages waited for an acknowledgement and

    * ``outage``: none was acknowledged,
    * ``hold``: some were, none was sent, and others were sent later.

    :param timeline: at, sent, answered, acked; one row for each bin
    :param width: µs of a bin
    :returns: what, at, until (µs)
    """
    found: list[Row] = []
    for row, what in zip(timeline, _states(timeline), strict=True):
        last = found[-1] if found else None
        if last is not None and last["what"] == what and last["until"] == row["at"]:
            last["until"] += width
        elif what:
            found.append({"what": what, "at": row["at"], "until": row["at"] + width})
    return [one for one in found if one["until"] - one["at"] >= SHORTEST]


def _states(timeline: Sequence[Row]) -> Iterator[str]:
    """Of each bin: outage, hold, or nothing."""
    last_sent = max((row["at"] for row in timeline if row["sent"]), default=0)
    waiting = 0
    for row in timeline:
        if waiting <= 0:
            yield ""
        elif not row["acked"]:
            yield "outage"
        else:
            yield "hold" if not row["sent"] and row["at"] < last_sent else ""
        waiting += row["sent"] - row["answered"]
