"""Reads a flight log without Spark, by delta-rs' query engine: its summary, and failed rows, to show or to publish
again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from ..contracts.aligned import aligned
from ..contracts.errors import DoubledId, FlightLogError
from ..contracts.message import HEADERS_TYPE
from ..contracts.redaction import redact
from ..options.paths import local_path
from .maintenance import adopt_orphans
from .schema import IS_FAILED, IS_IN_DOUBT, IS_OUTCOME, OUTCOMES, OWN_NAMES, PACKED_ROWS, sql_name
from .storage import TableStore, reading_errors, storage_errors

logger = logging.getLogger("mama_spark")
Row = dict[str, Any]

#: A percentile is estimated by a t-digest (100 centroids) and has the rank that it names within this much: p50 lies
#: between the exact p49 and p51. That bounds the rank, not the value, which may be far off where few flights have
#: latencies between two humps; the maximum is exact. Below 100 flights the estimate interpolates between neighbours.
PERCENTILE_RANK_ERROR = 0.01

_IS_DOUBLED = f"info LIKE '{DoubledId.label}%'"

_EVENTS = f"""
SELECT event, status, committed, count(*) AS flights, sum(rows) AS rows,
       sum(CASE WHEN duplicate THEN rows ELSE 0 END) AS duplicates,
       sum(CASE WHEN event = 'acked' AND sends = 0 THEN rows ELSE 0 END) AS found,
       sum(CASE WHEN {IS_IN_DOUBT} THEN rows ELSE 0 END) AS in_doubt,
       sum(CASE WHEN {_IS_DOUBLED} THEN 1 ELSE 0 END) AS doubled_ids
FROM log WHERE {IS_OUTCOME} GROUP BY event, status, committed ORDER BY committed DESC, flights DESC, event, status"""

_DOUBLED_ID = f"""
SELECT flight_id, topic FROM log WHERE kind = 'flight' AND {_IS_DOUBLED} ORDER BY event_time, flight_id LIMIT 1"""

_LATENCY = """
SELECT count(*) AS flights, max(latency_us) AS max, approx_percentile_cont(latency_us, 0.5) AS p50,
       approx_percentile_cont(latency_us, 0.9) AS p90, approx_percentile_cont(latency_us, 0.99) AS p99
FROM log WHERE kind = 'flight' AND event = 'acked' AND committed AND latency_us IS NOT NULL"""

_TOPICS = """
SELECT topic, count(*) AS flights, approx_percentile_cont(latency_us, 0.99) AS p99, max(latency_us) AS max
FROM log WHERE kind = 'flight' AND event = 'acked' AND committed AND latency_us IS NOT NULL
GROUP BY topic ORDER BY p99 DESC, topic LIMIT {limit}"""

_REASONS = f"""
SELECT event, status, code, info, committed, count(*) AS flights, min(topic) AS example_topic,
       min(flight_id) AS example_id
FROM log WHERE kind = 'flight' AND {IS_FAILED}
GROUP BY event, status, code, info, committed ORDER BY flights DESC, status, info LIMIT {{limit}}"""

#: Writes may overlap: of each, ``active`` has the µs after those that began before it.
_SPAN = f"""
WITH writes AS (
  SELECT min(CASE WHEN publish_time IS NULL THEN event_time ELSE publish_time END) AS first, max(event_time) AS last
  FROM log WHERE {IS_OUTCOME} AND committed GROUP BY query_id, run_id, batch_id),
ordered AS (
  SELECT first, last, CAST(first AS BIGINT) AS low, CAST(last AS BIGINT) AS high,
         max(CAST(last AS BIGINT)) OVER (ORDER BY first ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM writes)
SELECT min(first) AS first, max(last) AS last, sum(CASE WHEN before IS NULL OR before < low THEN high - low
       WHEN before < high THEN high - before ELSE 0 END) AS active FROM ordered"""

_ACKED_LATER = "acked_later"
#: The second pass over the log looks for the ids of few flights only.
_FAILED = f"""
WITH failed AS (
  SELECT event_time, event, status, code, info, topic, flight_id, may_have_landed, sends, committed, dead_lettered,
         query_id, run_id, batch_id, partition_id{{more}}
  FROM log WHERE kind = 'flight' AND {IS_FAILED}
  ORDER BY event_time DESC, flight_id LIMIT {{limit}}),
acked AS (
  SELECT flight_id AS id, max(event_time) AS at FROM log
  WHERE kind = 'flight' AND event = 'acked' AND flight_id IN (SELECT flight_id FROM failed) GROUP BY flight_id)
SELECT f.*, coalesce(a.at >= f.event_time, false) AS {_ACKED_LATER}
FROM failed f LEFT JOIN acked a ON f.flight_id = a.id ORDER BY f.event_time DESC, f.flight_id"""

#: A row of a committed write has one terminal event. Only few ids are counted: of rows that share one, the broker has
#: called one a duplicate, unless it does not say.
_SHARED_IDS = """
SELECT flight_id, stream, min(topic) AS topic, count(*) AS rows, sum(CAST(duplicate AS int)) AS duplicates,
       count(DISTINCT partition_id) AS tasks, query_id, run_id, batch_id
FROM log WHERE kind = 'flight' AND event = 'acked' AND committed AND flight_id IN
  (SELECT flight_id FROM log WHERE kind = 'flight' AND event = 'acked' AND committed AND duplicate IS NOT FALSE)
GROUP BY flight_id, stream, query_id, run_id, batch_id HAVING count(*) > 1
ORDER BY rows DESC, flight_id LIMIT {limit}"""

#: Passes of :func:`summarise` over the log; one more where ids are doubled.
PASSES = 5
#: Rows without which a rate says nothing.
LEAST_RATED = 100
SHARED_COLUMNS = ("rows", "tasks", "flight_id", "topic", "batch_id", "run_id")


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts, latencies and failures of a flight log. Rows of committed writes count once, those of other attempts
    apart.

    :ivar events: one row for each outcome, status and ``committed``: flights, rows, duplicates, found and in_doubt (in
        rows), doubled_ids
    :ivar latency: latencies of acknowledged flights of committed writes, µs: flights, p50, p90, p99 (rank exact within
        :data:`PERCENTILE_RANK_ERROR`), max (exact)
    :ivar slowest_topics: topic, flights, p99, max
    :ivar failures: event, status, code, info, committed, flights, example_topic, example_id; most frequent first
    :ivar first, last: ISO times of the first publish and the last event of committed writes; None if there are none
    :ivar active: seconds from the first publish to the last event of each committed write, common time once
    :ivar rate: rows acknowledged, or published where nothing is acknowledged, for each of these seconds; None: fewer
        than :data:`LEAST_RATED` rows
    :ivar doubled_id: flight_id and topic of the first flight with the id of a row before it in its task; None = none
    :ivar parts_not_added: files of writes that run or were interrupted, whose rows are not counted here; None: not
        known, in storage where a list of them takes long
    """

    path: str
    version: int
    events: list[Row]
    latency: Row
    slowest_topics: list[Row]
    failures: list[Row]
    first: str | None
    last: str | None
    active: float
    rate: float | None
    doubled_id: Row | None = None
    parts_not_added: int | None = None

    def count(self, *events: str, committed: bool = True) -> int:
        """Flights with one of these outcomes (all if none is named) in committed writes, or in the other attempts."""
        return self._sum("flights", events, committed)

    def count_rows(self, *events: str, committed: bool = True) -> int:
        """Source rows in these flights: as many, unless rows were packed."""
        return self._sum("rows", events, committed)

    def _sum(self, column: str, events: Sequence[str] = (), committed: bool = True) -> int:
        rows = (r for r in self.events if r["committed"] is committed and (not events or r["event"] in events))
        return sum(r[column] or 0 for r in rows)

    def outcomes(self, committed: bool = True) -> dict[str, int]:
        """Rows in all, and by outcome, which add up to them."""
        by_outcome = {name: self.count_rows(event, committed=committed) for name, event in OUTCOMES.items()}
        return {"rows": self.count_rows(committed=committed), **by_outcome}

    @property
    def duplicates(self) -> int:
        return self._sum("duplicates")

    @property
    def found(self) -> int:
        """Acknowledged without being sent: an attempt before them had stored their rows (``exactlyOnce``)."""
        return self._sum("found")

    @property
    def in_doubt(self) -> int:
        """Rows that are not acknowledged, yet perhaps stored."""
        return self._sum("in_doubt")

    @property
    def doubled_ids(self) -> int:
        """Flights with the id of a row before them in their task, whatever became of them."""
        return sum(r["doubled_ids"] or 0 for r in self.events)

    def json(self) -> str:
        sums = {
            **self.outcomes(),
            "not_committed": self.outcomes(committed=False),
            "duplicates": self.duplicates,
            "found": self.found,
            "in_doubt": self.in_doubt,
            "doubled_ids": self.doubled_ids,
        }
        return json.dumps({**asdict(self), **sums}, ensure_ascii=False, default=str)

    def text(self) -> str:
        return tables_text(self.head(), self.tables())

    def tables(self) -> list[tuple[str, list[Row], tuple[str, ...]]]:
        """Title, rows and columns of each table."""
        slowest = [{**r, "p99": _ms(r["p99"]), "max": _ms(r["max"])} for r in self.slowest_topics]
        return [
            ("events", self.events, ("event", "status", "committed", "flights", "rows")),
            ("slowest topics", slowest, ("topic", "flights", "p99", "max")),
            ("failures", self.failures, ("flights", "event", "status", "code", "info", "example_topic", "committed")),
        ]

    def head(self) -> list[str]:
        counted, other = self.outcomes(), self.outcomes(committed=False)
        lines = [
            f"rows         {counted['rows']:,} of committed writes: {outcomes_text(counted)}",
            f"duplicates   {self.duplicates:,}   in doubt {self.in_doubt:,}",
        ]
        if other["rows"]:
            lines.insert(
                1 if counted["rows"] else 0,
                f"not counted  {other['rows']:,} in attempts that were not committed: {outcomes_text(other)}, "
                f"in doubt {self._sum('in_doubt', committed=False):,}",
            )
        lines.insert(0, f"flight log   {self.path} (version {self.version})")
        if self.parts_not_added:
            lines.append(
                f"not added    parts of writes that run or were interrupted: {self.parts_not_added:,}; a query adds "
                "its own when it starts again, mama flights sweep --older-than adds others"
            )
        if self.found:
            lines.append(f"found        {self.found:,} were stored already, by an attempt before, and not sent again")
        if self.doubled_id is not None:
            example = f"the first: id {self.doubled_id['flight_id']!r}, topic {self.doubled_id['topic']!r}"
            lines.append(f"doubled ids  {self.doubled_ids:,} with a {DoubledId.label} ({example})")
        rows, flights = self.count_rows("acked"), self.count("acked")
        if rows != flights:
            lines.append(f"packed       {rows:,} rows in {flights:,} acked flights")
        if self.rate is not None:
            during = f"during the {self.active:,.3g} s of writes"
            lines.append(f"rate         {self.rate:,.0f} rows/s {during} from {self.first} to {self.last}")
        if self.latency["flights"]:
            lines.append(
                "latency      " + "   ".join(f"{k} {_ms(self.latency[k])}" for k in ("p50", "p90", "p99", "max"))
            )
        return lines


def summarise(
    path: str, storage: dict[str, str], limit: int = 10, on_pass: Callable[[], object] = lambda: None
) -> Summary:
    """Read the whole log once for each question, in bounded memory.

    :param storage: delta-rs' storage options
    :param limit: number of topics and reasons
    :param on_pass: called after each pass over the log, of :data:`PASSES`
    :raises FlightLogError: no flight log there
    :raises Unavailable: storage cannot be reached
    """
    table = open_log(path, storage)
    ask = partial(query, table, storage, on_pass=on_pass)
    span = ask(_SPAN)[0]
    first, last = span["first"], span["last"]
    events, doubled = ask(_EVENTS), None
    if any(row["doubled_ids"] for row in events):
        doubled = query(table, storage, _DOUBLED_ID)[0]
    seconds = (span["active"] or 0) / 1e6
    done = sum(r["rows"] or 0 for r in events if r["committed"] and r["event"] in ("acked", "published"))
    return Summary(
        path=path,
        version=table.version(),
        events=events,
        latency=ask(_LATENCY)[0],
        slowest_topics=ask(_TOPICS.format(limit=int(limit))),
        failures=ask(_REASONS.format(limit=int(limit))),
        first=None if first is None else first.isoformat(),
        last=None if last is None else last.isoformat(),
        active=seconds,
        rate=done / seconds if done >= LEAST_RATED and seconds > 0 else None,
        doubled_id=doubled,
        parts_not_added=_parts_not_added(path, storage),
    )


def _parts_not_added(path: str, storage: dict[str, str]) -> int | None:
    return None if local_path(path) is None else len(adopt_orphans(path, storage, timedelta(0), dry_run=True).parts)


def failed(path: str, storage: dict[str, str], limit: int = 20) -> list[Row]:
    """The latest flights that failed or timed out, of all attempts, newest first; with the columns that
    ``flightLogColumns`` named, and whether the id was acknowledged later: a row that was published again."""
    table = open_log(path, storage)
    named = [f.name for f in table.schema().fields if f.name not in OWN_NAMES and f.name != _ACKED_LATER]
    more = "".join(f", {sql_name(name)}" for name in named)
    return query(table, storage, _FAILED.format(limit=int(limit), more=more))


def failed_columns(rows: list[Row]) -> tuple[str, ...]:
    """Columns of :func:`failed_text`: reason and row first, as a narrow terminal breaks the line behind them."""
    named = [name for name in rows[0] if name not in {*OWN_NAMES, _ACKED_LATER, PACKED_ROWS}] if rows else []
    told = [name for name in ("code", "dead_lettered", _ACKED_LATER) if any(row[name] for row in rows)]
    return ("status", "info", "topic", *named, "event_time", "event", "committed", *told, "flight_id")


def failed_text(rows: list[Row]) -> str:
    if not rows:
        return "no flight failed"
    return "\n".join(table_lines("failed", rows, *failed_columns(rows))[1:])


def shared_ids(path: str, storage: dict[str, str], limit: int = 20) -> list[Row]:
    """Ids that several acknowledged messages of one committed write have; a deduplicating broker stored one of them.
    Rows: flight_id, stream, topic of one, rows, duplicates, tasks, query_id, run_id, batch_id; most rows first. Holds
    in memory the ids that were duplicates; all ids where the broker does not say (``ackMode=batch``).

    :raises FlightLogError: no flight log there
    :raises Unavailable: storage cannot be reached
    """
    return query(open_log(path, storage), storage, _SHARED_IDS.format(limit=int(limit)))


def shared_ids_text(rows: list[Row]) -> str:
    if not rows:
        return "no two messages of a write share an id"
    return "\n".join(table_lines("shared ids", rows, *SHARED_COLUMNS)[1:])


def open_log(path: str, storage: dict[str, str]) -> DeltaTable:
    """The table of the flight log at ``path``.

    :raises FlightLogError: no flight log there
    :raises Unavailable: storage cannot be reached
    """
    with storage_errors(f"flight log {path}", storage):
        table = TableStore(path, storage).table()
    if table is None:
        raise FlightLogError(
            f"{path}: no flight log there; a write makes it at its end, a query at that of its first micro-batch"
        )
    if not {"kind", "flight_id", "event"} <= {f.name for f in table.schema().fields}:
        raise FlightLogError(f"{path} is a table, but no flight log")
    return table


def query(
    table: DeltaTable,
    storage: dict[str, str],
    sql: str,
    on_pass: Callable[[], object] = lambda: None,
    **others: DeltaTable,
) -> list[Row]:
    """The rows that ``sql`` gives, in bounded memory; it calls the flight log ``log``, and ``others`` by their names.
    ``on_pass`` is called when the log was read. FlightLogError: a file of the table is damaged or missing."""
    with reading_errors(f"reading {table.table_uri}", storage):
        asked = QueryBuilder()
        for name, one in {"log": table, **others}.items():
            asked.register(name, one)
        rows: list[Row] = pa.table(asked.execute(sql)).to_pylist()
    on_pass()
    return rows


def outcomes_text(rows: Mapping[str, int]) -> str:
    """``22 acked, 2 published, 0 failed, 0 timed out``; ``published`` where there are some."""
    return ", ".join(f"{rows[n]:,} {n.replace('_', ' ')}" for n in OUTCOMES if rows[n] or n != "published")


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1000:,.2f} ms"


def tables_text(head: list[str], tables: Iterable[tuple[str, list[Row], tuple[str, ...]]]) -> str:
    return "\n".join(head + [line for title, rows, names in tables for line in table_lines(title, rows, *names)])


def table_lines(title: str, rows: list[Row], *names: str) -> list[str]:
    """A table for people, behind an empty line; nothing without rows."""
    if not rows:
        return []
    cells = [names, *(["-" if r[n] is None else str(r[n]) for n in names] for r in rows)]
    return ["", f"{title}:", *(f"  {line}" for line in aligned(cells))]


#: Columns of the rows to publish again: those of the sink.
REPLAY = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("id", pa.string()),
    ]
)

#: Flights that failed; but for those of an attempt at a write that another attempt committed, with outcomes of all its
#: rows, and with other ids if its partitions are others.
_WRITE = "coalesce(query_id, run_id) || ' ' || coalesce(CAST(batch_id AS string), '')"
_FAILED_FLIGHT = f"""(kind = 'flight' AND {IS_FAILED} AND (committed OR {_WRITE} IS NULL OR
    {_WRITE} NOT IN (SELECT DISTINCT written FROM (SELECT {_WRITE} AS written FROM log WHERE committed) AS done
    WHERE written IS NOT NULL)))"""

#: The rows that are not done, as they failed last. The same id on another topic is another row.
_UNPUBLISHED = """
SELECT topic, payload AS value, headers, flight_id AS id FROM (
    SELECT topic, payload, headers, flight_id, max(event_time) OVER (PARTITION BY flight_id, topic) AS at,
           row_number() OVER (PARTITION BY flight_id, topic ORDER BY payload IS NULL, event_time DESC) AS nth
    FROM log WHERE {failed}
) AS lost
WHERE nth = 1 AND payload IS NOT NULL AND flight_id IS NOT NULL AND {undone}
"""

_LEFT_OUT = """
SELECT coalesce(sum(CASE WHEN flight_id IS NULL THEN flights ELSE 1 END), 0) AS n FROM (
    SELECT flight_id, topic, count(*) AS flights, max(event_time) AS at
    FROM log WHERE {failed} GROUP BY flight_id, topic HAVING flight_id IS NULL OR count(payload) = 0
) AS lost
WHERE {undone}
"""

#: Where nothing is acknowledged, a flight that failed has been published before.
_UNDONE = """NOT EXISTS (
    SELECT 1 FROM (SELECT flight_id, topic, event, event_time FROM log
                   WHERE event = 'acked' OR event = 'published' AND ack_level = 'none') AS done
    WHERE done.flight_id = lost.flight_id AND done.topic = lost.topic
      AND (done.event = 'acked' OR done.event_time > lost.at))"""


def unpublished(path: str, storage: dict[str, str]) -> pa.Table:
    """Failed rows of the table at ``path``, with the ids under which they were published: those that were stored after
    all are not stored twice. Of a flight log, without the rows that another attempt published, and those of an attempt
    at a write that another one committed. A warning counts rows whose payload or id the table does not have.

    :returns: columns of :data:`REPLAY`
    :raises FlightLogError: no such table, or one of another kind
    """
    with reading_errors(path, storage):
        table = TableStore(path, storage).table()
        if table is None:
            raise FlightLogError(f"{path}: there is no table")
        names = {f.name for f in table.schema().fields}
        if not {"flight_id", "topic", "payload", "headers"} <= names:
            raise FlightLogError(f"{path} is neither a flight log nor a dead-letter table")
        failed, undone = (_FAILED_FLIGHT, _UNDONE) if "event" in names else ("true", "true")
        query = QueryBuilder().register("log", table)
        found = pa.table(query.execute(_UNPUBLISHED.format(failed=failed, undone=undone)))
        left_out = pa.table(query.execute(_LEFT_OUT.format(failed=failed, undone=undone)))["n"][0].as_py()
    if left_out:
        logger.warning(
            "%s: %d failed rows are left out, because the table lacks their payload or id%s: publish them from their "
            "source", redact(path), left_out, " (flightLogPayload=none?)" if "event" in names else "",
        )  # fmt: skip
    columns = [found.column(f.name).cast(f.type) for f in REPLAY]
    return pa.Table.from_arrays(columns, schema=REPLAY)
