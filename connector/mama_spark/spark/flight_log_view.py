"""What a notebook shows of a flight log: summary, plot, first failures."""

from __future__ import annotations

import html
from collections.abc import Iterator
from datetime import UTC, datetime

from ..contracts.errors import MamaError
from ..contracts.redaction import redact
from ..flightlog import report as flights

MOST_FAILURES = 5


def as_html(path: str) -> str | None:
    """The view; None = delta-rs cannot read the log, which Spark perhaps can.

    The plot is left out where the extra ``report`` is not installed.
    """
    try:
        parts = list(_parts(path))
    except MamaError:
        return None
    return "".join(parts)


def _parts(path: str) -> Iterator[str]:
    summary = flights.summarise(path, {})
    yield f"<pre>{html.escape(redact(chr(10).join(summary.head())))}</pre>"
    plot = _plot(path)
    if plot:
        yield f"<figure style='margin:0'>{plot}<figcaption>{html.escape(_CAPTION)}</figcaption></figure>"
    failures = flights.failed(path, {}, MOST_FAILURES)
    if failures:
        names = ("event_time", "status", "info", "topic", "flight_id", "committed")
        heads = "".join(f"<th>{name}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(redact(_shown(row[name])))}</td>" for name in names) + "</tr>"
            for row in failures
        )
        yield f"<p>The latest failures:</p><table><tr>{heads}</tr>{rows}</table>"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


_CAPTION = "Rows acknowledged a second. Healthy: a level band without points and without shades."


def _plot(path: str) -> str:
    try:
        from ..report import charts
        from ..report.data import read_report
    except ModuleNotFoundError:
        return ""
    # Time of day: the time of the report.
    data = read_report(path, {}, datetime.now(UTC))
    return charts.rate(data) if data.timeline else ""
