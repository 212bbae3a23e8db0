"""Data of the report page, reduced by SQL while delta-rs streams over the files: bins of time and of latency, and one
row for each partition, topic and reason. Its size does not depend on the number of flights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from ..flightlog.reading import Row, open_log, query
from ..flightlog.schema import IS_FAILED, IS_IN_DOUBT, IS_OUTCOME, IS_PERHAPS_TWICE, OUTCOMES, sql_text
from ..flightlog.transaction import described_writes

#: Passes of :func:`read_report` over the log.
PASSES = 9
#: Bins of time at most; the width is the shortest of :data:`WIDTHS` that needs no more.
MOST_BINS = 240
#: Seconds.
WIDTHS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
#: Bins of the distribution of latencies for each power of ten.
BINS_PER_DECADE = 8
MOST_TOPICS, MOST_PARTITIONS, MOST_REASONS, MOST_PUBLISHERS, MOST_ERRORS = 10_000, 100, 50, 60, 500
#: µs that a standstill has at least; what is shorter may be the time between two acknowledgements.
SHORTEST_STANDSTILL = 1_000_000
#: Texts that differ in numbers only are one reason.
_REASON = "regexp_replace(info, '[0-9]+', '0', 'g')"


def _rows_where(condition: str, name: str) -> str:
    return f"sum(CASE WHEN {condition} THEN rows ELSE 0 END) AS {name}"


_COUNTS = ", ".join(["sum(rows) AS rows", *(_rows_where(f"event = '{event}'", n) for n, event in OUTCOMES.items())])
_LATENCIES = """approx_percentile_cont(latency_us, 0.5) AS p50, approx_percentile_cont(latency_us, 0.99) AS p99"""

_TOTALS = f"""
SELECT committed, count(*) AS flights, {_COUNTS}, {_rows_where("duplicate", "duplicates")},
       {_rows_where("sends > 1", "resent")}, {_rows_where("dead_lettered", "dead_lettered")},
       {_rows_where(IS_IN_DOUBT, "in_doubt")}, {_rows_where(IS_PERHAPS_TWICE, "perhaps_twice")},
       count(DISTINCT topic) AS topics, count(DISTINCT run_id) AS runs, {_LATENCIES}, max(latency_us) AS longest,
       CAST(min(CASE WHEN publish_time IS NULL THEN event_time ELSE publish_time END) AS BIGINT) AS first,
       CAST(max(event_time) AS BIGINT) AS last
FROM log WHERE {IS_OUTCOME}{{more}} GROUP BY committed"""

_TIMELINE = f"""
SELECT CAST(floor((CAST(event_time AS BIGINT) - {{first}}) / {{width}}.0) AS BIGINT) AS bin,
       {_COUNTS}, {_rows_where("sends > 1", "resent")},
       sum(CASE WHEN publish_time IS NULL THEN 0 ELSE 1 END) AS answered, {_LATENCIES}
FROM log WHERE {IS_OUTCOME}{{more}} GROUP BY 1 ORDER BY 1"""

_SENT = f"""
SELECT CAST(floor((CAST(publish_time AS BIGINT) - {{first}}) / {{width}}.0) AS BIGINT) AS bin, count(*) AS sent
FROM log WHERE {IS_OUTCOME} AND publish_time IS NOT NULL{{more}} GROUP BY 1"""

_DISTRIBUTION = f"""
SELECT CAST(floor(log10(CASE WHEN latency_us < 1 THEN 1 ELSE latency_us END) * {BINS_PER_DECADE}) AS BIGINT) AS bin,
       count(*) AS flights
FROM log WHERE {IS_OUTCOME} AND NOT {IS_FAILED} AND latency_us IS NOT NULL{{more}} GROUP BY 1 ORDER BY 1"""

_BY_TOPIC = f"""
SELECT topic, {_COUNTS}, {_rows_where("duplicate", "duplicates")}, {_LATENCIES}
FROM log WHERE {IS_OUTCOME}{{more}} GROUP BY topic
ORDER BY failed + timed_out DESC, rows DESC, topic LIMIT {MOST_TOPICS}"""

_BY_PARTITION = f"""
SELECT partition_id AS partition, {_COUNTS}, {_LATENCIES}
FROM log WHERE {IS_OUTCOME}{{more}} GROUP BY partition_id ORDER BY rows DESC, partition LIMIT {MOST_PARTITIONS}"""

_REASONS = f"""
SELECT event, status, code, committed, min(info) AS info, sum(rows) AS rows, min(topic) AS topic,
       min(flight_id) AS flight_id, {_rows_where(IS_IN_DOUBT, "in_doubt")}
FROM log WHERE {IS_OUTCOME} AND {IS_FAILED}{{more}}
GROUP BY event, status, code, committed, {_REASON}
ORDER BY committed DESC, rows DESC, status, info LIMIT {MOST_REASONS}"""

_PUBLISHERS = f"""
SELECT run_id AS run, batch_id AS batch, partition_id AS partition, task_attempt AS attempt,
       CAST(min(event_time) AS BIGINT) AS first, CAST(max(event_time) AS BIGINT) AS last,
       max(CASE WHEN event = 'destroy' THEN 1 ELSE 0 END) AS ended,
       sum(CASE WHEN kind = 'publisher' AND event = 'error' THEN 1 ELSE 0 END) AS errors,
       sum(CASE WHEN event = 'PUBLISH_CREATE' AND topic IS NOT NULL THEN 1 ELSE 0 END) AS topics,
       sum(CASE WHEN kind = 'topic' AND event LIKE 'PUBLISH_ERROR%' THEN 1 ELSE 0 END) AS topic_errors
FROM log WHERE kind IN ('publisher', 'topic'){{more}} GROUP BY run_id, batch_id, partition_id, task_attempt
ORDER BY errors DESC, ended, last DESC, partition LIMIT {MOST_PUBLISHERS}"""

_ERRORS = f"""
SELECT run_id AS run, batch_id AS batch, partition_id AS partition, task_attempt AS attempt, kind,
       CAST(event_time AS BIGINT) AS at, status, info
FROM log WHERE (kind = 'publisher' AND event = 'error' OR kind = 'topic' AND event LIKE 'PUBLISH_ERROR%'){{more}}
ORDER BY kind, event_time DESC LIMIT {MOST_ERRORS}"""


@dataclass(frozen=True, slots=True)
class ReportData:
    """A flight log, reduced. Times are µs since the epoch, latencies µs.

    Counts are of rows: ``rows`` is the sum of ``acked``, ``published``, ``failed`` and ``timed_out``. Rows of committed
    writes count once; failed or superseded attempts are in ``not_committed``, and in other fields only where no write
    was committed.

    :ivar totals: totals of committed writes: flights (messages), rows and outcomes, duplicates, resent, dead_lettered,
        in_doubt, perhaps_twice, topics, runs, p50, p99, longest, first, last; without flights counts are 0 and the
        others None
    :ivar not_committed: totals of all other attempts
    :ivar width: µs of a bin of ``timeline``
    :ivar timeline: one row for each bin, empty ones too: at (its begin), rows and outcomes, resent, p50, p99; of
        messages: sent, answered (of those that were sent)
    :ivar standstills: what, at, until: see :func:`standstills`
    :ivar distribution: distribution of the latencies of acknowledged flights: low, high (not within), flights
    :ivar topics: topic, rows and outcomes, duplicates, p50, p99; failures first, at most :data:`MOST_TOPICS`
    :ivar partitions: partition, rows and outcomes, p50, p99; those with most rows
    :ivar reasons: reasons of failures in all attempts: event, status, code, committed, info (of one of them), rows,
        topic, flight_id (an example), in_doubt
    :ivar publishers: run, batch, partition, attempt, first, last (of their events), ended, errors, topics,
        topic_errors; those with errors first, then those without an end, then the newest
    :ivar errors: errors of publishers and topics: run, batch, partition, attempt, kind, at, status, info
    :ivar write: facts of the newest write: run, batch, query name, options without secrets; None: the log does not say
    """

    path: str
    version: int
    made: datetime
    run: str | None
    since: datetime | None
    totals: Row
    not_committed: Row
    width: int
    timeline: list[Row]
    standstills: list[Row]
    distribution: list[Row]
    topics: list[Row]
    partitions: list[Row]
    reasons: list[Row]
    publishers: list[Row]
    errors: list[Row]
    write: Row | None

    @property
    def shown(self) -> Row:
        """The totals that plots and tables show."""
        return self.totals if self.totals["flights"] else self.not_committed


def read_report(
    path: str,
    storage: dict[str, str],
    made: datetime,
    run: str | None = None,
    since: datetime | None = None,
    on_pass: Callable[[], object] = lambda: None,
) -> ReportData:
    """Read the log once for each table, in bounded memory.

    :param storage: delta-rs' storage options
    :param made: the time of the report, which it shows
    :param run: ``run_id`` of the events; None: all
    :param since: only the events from then on
    :param on_pass: called after each pass over the log, of :data:`PASSES`
    :raises FlightLogError: no flight log there, or a file of it is damaged
    :raises Unavailable: storage cannot be reached
    """
    table, chosen = open_log(path, storage), _condition(run, since)
    ask = partial(query, table, storage, on_pass=on_pass)
    found = {row.pop("committed"): row for row in ask(_TOTALS.format(more=chosen))}
    totals, not_committed = (found.get(committed, _NO_FLIGHTS) for committed in (True, False))
    shown = totals if totals["flights"] else not_committed
    more = f" AND {'' if totals['flights'] else 'NOT '}committed{chosen}"
    first, last = shown["first"] or 0, shown["last"] or 0
    width, timeline = bin_width(last - first), []
    if shown["flights"]:
        bins, sent = (ask(q.format(more=more, first=first, width=width)) for q in (_TIMELINE, _SENT))
        timeline = _without_holes(bins, sent, first, width)
    return ReportData(
        path=path,
        version=table.version(),
        made=made,
        run=run,
        since=since,
        totals=totals,
        not_committed=not_committed,
        width=width,
        timeline=timeline,
        standstills=standstills(timeline, width),
        distribution=[_latency_bin(row) for row in ask(_DISTRIBUTION.format(more=more))],
        topics=ask(_BY_TOPIC.format(more=more)),
        partitions=ask(_BY_PARTITION.format(more=more)),
        reasons=ask(_REASONS.format(more=chosen)),
        publishers=ask(_PUBLISHERS.format(more=chosen)),
        errors=ask(_ERRORS.format(more=chosen)),
        write=next((w for w in described_writes(table) if run in (None, w.get("run_id"))), None),
    )


_NO_FLIGHTS: Row = dict.fromkeys(
    (
        *("flights", "rows", *OUTCOMES, "duplicates", "resent", "dead_lettered", "in_doubt", "perhaps_twice"),
        *("topics", "runs"),
    ),
    0,
) | dict.fromkeys(("p50", "p99", "longest", "first", "last"))


def bin_width(span: int) -> int:
    """Bin width in µs for a log that covers ``span`` µs."""
    for width in WIDTHS:
        if span / 1e6 / width <= MOST_BINS:
            return round(width * 1e6)
    days = -(-span // (MOST_BINS * 86_400_000_000))
    return days * 86_400_000_000


def _condition(run: str | None, since: datetime | None) -> str:
    found = ""
    if run is not None:
        found += f" AND run_id = {sql_text(run)}"
    if since is not None:
        found += f" AND event_time >= TIMESTAMP '{since.astimezone(UTC).isoformat()}'"
    return found


_NOTHING = dict.fromkeys(("sent", "answered", "rows", *OUTCOMES, "resent"), 0) | dict.fromkeys(("p50", "p99"))


def _without_holes(bins: list[Row], sent: list[Row], first: int, width: int) -> list[Row]:
    """Bins without flights become rows of zeros, so that a standstill shows."""
    by_number = {row.pop("bin"): row for row in bins}
    sent_in = {row["bin"]: row["sent"] for row in sent}
    return [
        {"at": first + n * width, **_NOTHING, **by_number.get(n, {}), "sent": sent_in.get(n, 0)}
        for n in range(max(by_number, default=-1) + 1)
    ]


def _latency_bin(row: Row) -> Row:
    low, high = (10 ** ((row["bin"] + end) / BINS_PER_DECADE) for end in (0, 1))
    return {"low": low, "high": high, "flights": row["flights"]}


def standstills(timeline: Sequence[Row], width: int) -> list[Row]:
    """The times (what, at, until; µs), in order, in which messages waited for an acknowledgement and none was
    acknowledged (``outage``), or some were, none was sent, and others were sent later (``hold``). ``timeline``: at,
    sent, answered, acked, for each bin of ``width`` µs."""
    found: list[Row] = []
    for row, what in zip(timeline, _states(timeline), strict=True):
        last = found[-1] if found else None
        if last is not None and last["what"] == what and last["until"] == row["at"]:
            last["until"] += width
        elif what:
            found.append({"what": what, "at": row["at"], "until": row["at"] + width})
    return [one for one in found if one["until"] - one["at"] >= SHORTEST_STANDSTILL]


def _states(timeline: Sequence[Row]) -> Iterator[str]:
    """State of each bin: outage, hold, or empty."""
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
