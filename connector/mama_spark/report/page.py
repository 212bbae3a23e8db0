"""The report page: plots and tables in one HTML file."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from ..contracts.errors import ConfigError
from ..contracts.redaction import redact
from ..flightlog.reading import outcomes_text
from ..options import duration
from . import charts
from .data import MOST_PUBLISHERS, ReportData, read_report
from .verdict import SKEW, headline, rows_text, skew_of, verdict

#: Advice for failures, by status.
ADVICE = {
    "PUBLISH_ERROR_NOT_ENTITLED": "The user may not publish to this topic: ask for the permission, or choose a topic.",
    "PUBLISH_ERROR_NO_RESPONDERS": "No stream takes this topic: create one (createStream=true), or choose a topic. In "
    "an outage: publish these rows again when the server answers; onUnavailable=wait waits for it.",
    "PUBLISH_ERROR": "The server did not take the message, and says why: look at the limits of the stream. If it says "
    "that the publisher ended or stopped, look for the first failure of that time.",
    "TIMEOUT": "Nobody acknowledged the message in time, and it may be stored. Look at the server's log and disk; then "
    "publish these rows again with the same ids, so that the server drops what it has.",
    "BAD_SYMBOL": "The topic has a form that the middleware does not allow: mend the column topic.",
    "INVALID_ARG": "The row cannot be sent as it is: mend it. The message says which value.",
}
OTHER_ADVICE = "Look for the text of the message on the page Troubleshooting of the documentation."


@dataclass(frozen=True, slots=True)
class Report:
    """A report page, which notebooks show as the value of a cell. ``html`` needs no other file and no network."""

    data: ReportData
    html: str

    def save(self, path: str | Path) -> Path:
        """Write the page; its path. :class:`ConfigError` if the file cannot be written."""
        target = Path(path)
        try:
            target.write_text(self.html, encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"the report cannot be written to {target}: {e.strerror}; name another file") from e
        return target.resolve()

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:48em;border:0"></iframe>'

    def __repr__(self) -> str:
        return f"<Report of {redact(self.data.path)}: {headline(self.data)}>"


def report(
    path: str,
    *,
    run: str | None = None,
    since: str | timedelta | None = None,
    storage: dict[str, str] | None = None,
    on_pass: Callable[[], object] = lambda: None,
) -> Report:
    """The report of a flight log; ``report(path).save("report.html")`` writes the page.

    :param run: ``run_id`` of the events; None: all
    :param since: only the events of the last ``"1h"``, ``"30m"``, ...
    :param storage: delta-rs' storage options
    :param on_pass: called after each pass over the log
    :raises ConfigError: ``since`` is no duration
    :raises FlightLogError: no flight log there, or a file of it is damaged
    :raises Unavailable: storage cannot be reached
    """
    # Time of day: the time of the report, and what "the last hour" is.
    now = datetime.now(UTC)
    data = read_report(path, storage or {}, now, run, None if since is None else now - _duration(since), on_pass)
    return Report(data, render(data))


def _duration(since: str | timedelta) -> timedelta:
    if isinstance(since, timedelta):
        return since
    try:
        return timedelta(seconds=duration.with_unit(since))
    except ValueError as e:
        raise ConfigError(f"since: {e}, got {since!r}") from None


def render(data: ReportData) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(ms=_ms, count=_count, time=_time, share=_share, redacted=redact)
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        data=data,
        totals=data.totals,
        path=redact(data.path),
        headline=headline(data),
        rate=average_rate(data),
        verdict=verdict(data),
        notes=list(notes(data)),
        figures=figures(data),
        step=f"{data.width / 1e6:g} s",
        shortest=f"{charts.SHORTEST / 1000:g} ms",
        most_publishers=MOST_PUBLISHERS,
        advice=lambda status: ADVICE.get(status, OTHER_ADVICE),
        numbers=json.dumps(_numbers(data)).replace("<", "\\u003c"),
    )


def average_rate(data: ReportData) -> float | None:
    """Rows acknowledged (else published) a second, from first send to last outcome; None without time between them."""
    totals = data.totals
    span = (totals["last"] or 0) - (totals["first"] or 0)
    return (totals["acked"] + totals["published"]) * 1e6 / span if span else None


def notes(data: ReportData) -> Iterator[str]:
    totals, others = data.totals, data.not_committed
    if not data.shown["flights"]:
        yield (
            "Without a run and a time the report shows all messages of the log." if data.run or data.since else
            "A write adds its messages when it commits."
        )  # fmt: skip
    if others["rows"]:
        yield (
            f"Not counted: {rows_text(others['rows'])} in attempts that were not committed: {outcomes_text(others)}, "
            f"in doubt {others['in_doubt']:,}."
            + ("" if totals["flights"] else " Plots and tables show these attempts.")
        )
    if totals["rows"] > totals["flights"]:
        yield f"The rows were packed in {totals['flights']:,} messages."
    if totals["in_doubt"]:
        yield f"Not acknowledged, and stored perhaps all the same: {rows_text(totals['in_doubt'])}."
    if totals["perhaps_twice"]:
        yield (
            f"Sent while a server that did not answer might have a copy, and perhaps stored twice: "
            f"{rows_text(totals['perhaps_twice'])} (onSilentServer=publish; info of the flight log names them)."
        )
    if totals["resent"]:
        yield f"Sent more than once: {rows_text(totals['resent'])}."
    if totals["duplicates"]:
        yield f"Found again: the server already had {rows_text(totals['duplicates'])}, and dropped the second copy."
    if totals["dead_lettered"]:
        yield f"Sent to the dead letters: {rows_text(totals['dead_lettered'])}."
    for what in ("outage", "hold"):
        times = [one["until"] - one["at"] for one in data.standstills if one["what"] == what]
        if times:
            many = f"{len(times)} {what}s, the longest of" if len(times) > 1 else f"One {what} of"
            yield f"{many} {max(times) / 1e6:,.1f} s."
    skew = skew_of(data)
    if skew >= SKEW:
        yield f"Skew: one partition has {skew:.1f} times as many rows as the median partition."
    if data.shown["topics"] > len(data.topics):
        yield f"The table shows {len(data.topics):,} of {data.shown['topics']:,} topics, those with failures first."
    if totals["flights"] and not totals["acked"] + totals["published"]:
        yield "No acknowledged message is in the log; with flightLogLevel=errors it has failures only."


def figures(data: ReportData) -> dict[str, str]:
    """The plots for which there are data, as SVG, by title; the template says what each shows."""
    latencies = any(row["p50"] is not None for row in data.timeline)
    plots: dict[str, tuple[object, Callable[[ReportData], str]]] = {
        "Rate": (data.timeline, charts.rate),
        "Latency over time": (latencies, charts.latency),
        "Distribution of latency": (data.distribution, charts.distribution),
        "Partitions": (data.partitions, charts.partitions),
        "Publishers": (data.publishers, charts.life_lines),
    }
    return {title: draw(data) for title, (there, draw) in plots.items() if there}


def _numbers(data: ReportData) -> dict[str, Any]:
    names = ("totals", "not_committed", "width", "timeline", "standstills", "distribution", "partitions", "publishers")
    return {name: getattr(data, name) for name in names}


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1000:,.2f}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _time(us: int | None) -> str:
    return "-" if us is None else f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g} %" if whole else "-"
