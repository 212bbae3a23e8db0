"""The plots of the report page, as SVG: drawn by Vega-Lite in this process, so that the page needs neither network nor
scripts. Text has the colour of the page around it, so one drawing serves light, dark and paper."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ..flightlog.reading import Row
from ..flightlog.schema import OUTCOMES
from .data import BINS_PER_DECADE, ReportData

WIDTH, HEIGHT = 860, 220
#: Pixels: of the names of publishers, which are left of their plot; of the bar of a partition at most.
NAMES, WIDEST_BAR = 150, 60
#: Shorter latencies, µs, are drawn as this one: an answer that came before the time of its send was stored has 0, and
#: would make most of a logarithmic axis empty.
SHORTEST = 100.0
ACKED, PUBLISHED, FAILED, TIMED_OUT, RESENT = "#2a9d8f", "#8ab17d", "#d1495b", "#e9a03b", "#5b7db1"
_COLORS = dict(zip(OUTCOMES, (ACKED, PUBLISHED, FAILED, TIMED_OUT), strict=True))
_STANDSTILLS = {"outage": FAILED, "hold": TIMED_OUT}


def rate(data: ReportData) -> str:
    """Rows acknowledged a second, as steps. Shaded: holds and outages; points: rows that failed, timed out or were sent
    again; dashed: errors of publishers."""
    seconds = data.width / 1e6
    end = [{**data.timeline[-1], "at": data.timeline[-1]["at"] + data.width}]  # or the last step has no width
    acked = [
        {"time": row["at"] / 1000, "rate": (row["acked"] + row["published"]) / seconds}
        for row in [*data.timeline, *end]
    ]
    other = [
        {"time": (row["at"] + data.width / 2) / 1000, "what": what, "rate": row[name] / seconds}
        for row in data.timeline
        for what, name in (("failed", "failed"), ("timed out", "timed_out"), ("sent again", "resent"))
        if row[name]
    ]
    shaded = [
        {"time": one["at"] / 1000, "until": one["until"] / 1000, "standstill": one["what"]} for one in data.standstills
    ]
    errors = [{"time": row["at"] / 1000} for row in data.errors if row["kind"] == "publisher"]
    y = alt.Y("rate:Q", title="rows a second")
    area = _chart(acked).mark_area(color=ACKED, opacity=0.35, line={"color": ACKED}, interpolate="step-after")
    colors = alt.Scale(domain=["failed", "timed out", "sent again"], range=[FAILED, TIMED_OUT, RESENT])
    points = (
        _chart(other)
        .mark_point(filled=True, size=50, opacity=1)
        .encode(x=_time(data), y=y, color=alt.Color("what:N", scale=colors, title=None))
    )
    shades = alt.Scale(domain=list(_STANDSTILLS), range=list(_STANDSTILLS.values()))
    rects = (
        _chart(shaded)
        .mark_rect(opacity=0.3)
        .encode(x=_time(data), x2="until:T", color=alt.Color("standstill:N", scale=shades, title=None))
    )
    lines = _chart(errors).mark_rule(color=FAILED, strokeDash=[4, 3]).encode(x=_time(data))
    layers = alt.layer(rects, area.encode(x=_time(data), y=y), points, lines).resolve_scale(color="independent")
    return _svg(layers, "Rows acknowledged a second over time")


def latency(data: ReportData) -> str:
    """p50 and p99 of acknowledged flights over time, on a logarithmic axis."""
    values = [
        {
            "time": row["at"] / 1000,
            "percentile": name,
            "ms": None if row[name] is None else max(row[name], SHORTEST) / 1000,
        }
        for row in data.timeline
        for name in ("p50", "p99")
    ]  # a bin without acknowledgements breaks the lines
    colors = alt.Scale(domain=["p50", "p99"], range=[ACKED, RESENT])
    chart = (
        _chart(values)
        .mark_line(point={"size": 12})
        .encode(
            x=_time(data),
            y=alt.Y("ms:Q", title="latency, ms", scale=alt.Scale(type="log"), axis=_decades(values, "ms")),
            color=alt.Color("percentile:N", scale=colors, title=None),
        )
    )
    return _svg(chart, "Latency of acknowledged messages over time")


def distribution(data: ReportData) -> str:
    """Flights by latency; each bar is an eighth of a power of ten."""
    bars: dict[float, Row] = {}
    for row in data.distribution:
        low = max(row["low"], SHORTEST)
        high = max(row["high"], SHORTEST * 10 ** (1 / BINS_PER_DECADE))
        bar = bars.setdefault(round(low), {"low": low / 1000, "high": high / 1000, "flights": 0, "zero": 0})
        bar["flights"] += row["flights"]
    values = list(bars.values())
    for bar in values:
        bar["text"] = f"latency, ms: {bar['low']:.4g} to {bar['high']:.4g}; messages: {bar['flights']}"
    chart = (
        _chart(values)
        .mark_bar(color=ACKED, opacity=0.8)
        .encode(
            x=alt.X(
                "low:Q", title="latency, ms", scale=alt.Scale(type="log", nice=False), axis=_decades(values, "low")
            ),
            x2="high:Q",
            y=alt.Y("flights:Q", title="messages"),
            y2="zero:Q",
            description="text:N",
        )
    )
    return _svg(chart, "Messages by latency")


def partitions(data: ReportData) -> str:
    """Rows of each partition by outcome."""
    values = [
        {"partition": row["partition"], "outcome": name.replace("_", " "), "rows": row[name]}
        for row in data.partitions
        for name in OUTCOMES
        if row[name]
    ]
    there = {row["outcome"] for row in values}
    colors = {what: color for name, color in _COLORS.items() if (what := name.replace("_", " ")) in there}
    size = WIDEST_BAR if len(data.partitions) * WIDEST_BAR < WIDTH / 2 else alt.Undefined
    chart = (
        _chart(values)
        .mark_bar(size=size)
        .encode(
            x=alt.X("partition:O", title="partition", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("rows:Q", title="rows"),
            color=alt.Color("outcome:N", scale=alt.Scale(domain=list(colors), range=list(colors.values())), title=None),
        )
    )
    return _svg(chart, "Rows of each partition by outcome")


def life_lines(data: ReportData) -> str:
    """The working time of each publisher, first event to last, with errors of its own and of its topics."""
    lines, errors = life_line_values(data.publishers, data.errors)
    y = alt.Y("publisher:N", title=None, sort=None, axis=alt.Axis(minExtent=NAMES, labelLimit=260))
    ends = alt.Scale(domain=["ended", "no end"], range=[ACKED, TIMED_OUT])
    span = (
        _chart(lines)
        .mark_rule(strokeWidth=5, strokeCap="round")
        .encode(x=_time(data, "from"), x2="to:T", y=y, color=alt.Color("end:N", scale=ends, title=None))
    )
    kinds = alt.Scale(domain=["error of the publisher", "error of a topic"], range=["cross", "triangle-up"])
    marks = (
        _chart(errors)
        .mark_point(filled=True, color=FAILED, size=60, opacity=1)
        .encode(x=_time(data, "from"), y=y, shape=alt.Shape("error:N", scale=kinds, title=None))
    )
    return _svg(alt.layer(span, marks), "Publishers over time", WIDTH - NAMES, max(60, 16 * len(lines)))


def life_line_values(publishers: Sequence[Row], errors: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """One row for each publisher (publisher, from, to, end), by begin, and one for each of their errors (publisher,
    from, error). Times are ms since the epoch."""
    lines = {_key(row): _life_line(row) for row in sorted(publishers, key=lambda row: (row["first"], row["partition"]))}
    marks = [
        {
            "publisher": lines[_key(row)]["publisher"],
            "from": row["at"] / 1000,
            "error": "error of the publisher" if row["kind"] == "publisher" else "error of a topic",
        }
        for row in errors
        if _key(row) in lines
    ]
    return list(lines.values()), marks


def _key(row: Row) -> tuple[object, ...]:
    return row["run"], row["batch"], row["partition"], row["attempt"]


def _life_line(row: Row) -> Row:
    end = "ended" if row["ended"] else "no end"
    return {"publisher": _publisher_name(row), "from": row["first"] / 1000, "to": row["last"] / 1000, "end": end}


def _publisher_name(row: Row) -> str:
    batch = "" if row["batch"] is None else f"batch {row['batch']}, "
    attempt = f", attempt {row['attempt']}" if row["attempt"] else ""
    topics = "" if not row["topics"] else f", {row['topics']:,} topic{'' if row['topics'] == 1 else 's'}"
    return f"{batch}partition {row['partition']}{attempt}{topics}"


def _chart(values: list[Row]) -> alt.Chart:
    return alt.Chart(alt.Data(values=values))  # type: ignore[no-untyped-call]


def _decades(values: Sequence[Mapping[str, Any]], name: str) -> alt.Axis:
    found = [row[name] for row in values if row[name]] or [1.0]
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    return alt.Axis(values=[10.0**power for power in range(low, high + 1)], format=",~f")


def _time(data: ReportData, field: str = "time") -> alt.X:
    first, last = data.shown["first"], data.shown["last"]
    if first is None:  # there are events of publishers only
        first, last = (pick(row[name] for row in data.publishers) for pick, name in ((min, "first"), (max, "last")))
    axis = alt.Axis(format=time_format(last - first), labelOverlap=True)
    return alt.X(f"{field}:T", title="time (UTC)", scale=alt.Scale(type="utc"), axis=axis)


def time_format(span: int) -> str:
    """Format of the times on the axis of a plot of ``span`` µs."""
    seconds = span / 1e6
    if seconds < 10:
        return "%H:%M:%S.%L"
    return "%H:%M:%S" if seconds < 7200 else "%H:%M" if seconds < 86400 else "%b %d %H:%M"


def _svg(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart, description: str, width: int = WIDTH, height: int = HEIGHT
) -> str:
    text = {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "titleFontSize": 12}
    lines = {
        "gridColor": "currentColor", "gridOpacity": 0.12, "domainColor": "currentColor", "tickColor": "currentColor",
    }  # fmt: skip
    shown = chart.properties(width=width, height=height, description=description, background="transparent").configure(
        font="sans-serif",
        axis=alt.AxisConfig(**text, **lines, titleFontWeight="normal", titlePadding=16),  # type: ignore[arg-type]
        legend=alt.LegendConfig(labelColor="currentColor", orient="top", labelFontSize=12, columnPadding=28),
        view=alt.ViewConfig(stroke=None),
    )
    drawn = io.StringIO()
    shown.save(drawn, format="svg")
    return drawn.getvalue()
