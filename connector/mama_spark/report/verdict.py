"""The verdict of a report on the rows of a flight log, its headline, and what is skew. Pure."""

from __future__ import annotations

from .data import ReportData

#: A partition with so many times the rows of the median is skew.
SKEW = 2


def verdict(data: ReportData) -> str:
    """``empty``, ``failed``, ``attention`` or ``good``; the headline has the colour of this name."""
    totals, others = data.totals, data.not_committed
    if not data.shown["flights"]:
        return "empty"
    if totals["failed"] or totals["timed_out"] or not totals["flights"]:
        return "failed"
    doubts = (
        totals["resent"]
        or totals["perhaps_twice"]
        or totals["duplicates"]
        or data.standstills
        or others["failed"]
        or others["timed_out"]
    )
    return "attention" if doubts else "good"


def skew_of(data: ReportData) -> float:
    """The rows of the largest partition, as a multiple of those of the median one."""
    if len(data.partitions) < 2:
        return 1.0
    sizes = sorted(row["rows"] for row in data.partitions)
    return float(sizes[-1] / sizes[len(sizes) // 2])


def headline(data: ReportData) -> str:
    """The outcome of the rows of committed writes in one sentence."""
    totals, failed = data.totals, data.totals["failed"] + data.totals["timed_out"]
    if not data.shown["flights"]:
        return "The flight log has no messages" + (" of this run or time." if data.run or data.since else ".")
    if not totals["flights"]:
        return "No write was committed."
    if failed:
        done = "published" if totals["published"] else "acknowledged"
        return f"{failed:,} of {rows_text(totals['rows'])} {'was' if failed == 1 else 'were'} not {done}."
    who = "The row was" if totals["rows"] == 1 else f"All {totals['rows']:,} rows were"
    if totals["published"]:
        return f"{who} published, and {format(totals['acked'], ',') if totals['acked'] else 'none'} acknowledged."
    return f"{who} acknowledged."


def rows_text(number: int) -> str:
    """``1 row``, ``2 rows``."""
    return f"{number:,} row{'' if number == 1 else 's'}"
