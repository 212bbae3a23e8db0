"""Compares a flight log with the stored messages by questions in SQL, which delta-rs and Spark understand. Pure.

The questions are asked of two tables: ``log``, a flight log, and ``stored`` (:data:`~mama_spark.audit.audit.STORED`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from string import hexdigits

from ..flightlog.schema import IS_IN_DOUBT, IS_OUTCOME, sql_text
from ..publishing.ids.ids import ID_END
from .result import MATCHES, Audit, Row, Span

#: Clocks of executors and servers differ, and a copy may be stored later than its write ended. In SQL, and seconds.
MARGIN = 600


@dataclass(frozen=True, slots=True)
class FlightSelection:
    """Selects flights of one query or run, of one batch (or ``txnVersion``), of a time; by default all."""

    query: str | None = None
    run: str | None = None
    batch: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def sql(self) -> str:
        found = "kind = 'flight'"
        for column, value in (("query_id", self.query), ("run_id", self.run)):
            found += "" if value is None else f" AND {column} = {sql_text(value)}"
        found += "" if self.batch is None else f" AND batch_id = {int(self.batch)}"
        for sign, moment in ((">=", self.since), ("<", self.until)):
            if moment is not None:
                found += f" AND event_time {sign} {_moment(moment)}"
        return found


_ACKED = "event = 'acked' AND ack_level = 'stored'"


def spans_question(selection: FlightSelection, bridge: str) -> str:
    """For each stream with messages: low, high (sequences), first, last (times), and how many are unnumbered."""
    return f"""
SELECT stream, min(sequence) AS low, max(sequence) AS high, count(*) - count(sequence) AS unnumbered,
       min(CASE WHEN publish_time IS NULL THEN event_time ELSE publish_time END) AS first, max(event_time) AS last
FROM log WHERE {selection.sql()} AND {_ACKED} AND bridge = {sql_text(bridge)} AND stream IS NOT NULL
GROUP BY stream ORDER BY stream"""


def rest_question(selection: FlightSelection, bridge: str) -> str:
    """Outcomes that cannot be compared: bridge, event, ack_level, messages."""
    return f"""
SELECT bridge, event, ack_level, count(*) AS messages FROM log
WHERE {selection.sql()} AND {IS_OUTCOME} AND event IN ('acked', 'published')
  AND NOT ({_ACKED} AND bridge = {sql_text(bridge)} AND stream IS NOT NULL)
GROUP BY bridge, event, ack_level ORDER BY bridge, event, ack_level"""


def _head(column: str) -> str:
    """SQL: the common prefix of the default ids of one write; the whole id if it is no default id."""
    return f"regexp_replace({column}, '-{ID_END}$', '')"


def _made_by(table: str, column: str = "") -> str:
    """SQL: does an id (by default the flight's) begin as the default ids of the flight's query or run do? Ids of a
    column may look like default ids of other writes."""
    write = f"coalesce({table}.query_id, {table}.run_id)"
    return f"substr({column or table + '.id'}, 1, length({write}) + 1) = {write} || '-'"


#: In place of a range of sequences: the flights that the log has no sequence of.
UNNUMBERED = "unnumbered"
Part = tuple[int, int] | str


class Comparison:
    """The questions about some flights, each about a part of them: a small one needs little memory. ``spans``: time
    spans by stream; ``foreign``: whatever is not in the log is a finding."""

    def __init__(
        self, selection: FlightSelection, bridge: str, spans: Mapping[str, Span], *, foreign: bool = False
    ) -> None:
        self._selection, self._foreign = selection.sql(), foreign
        self._stored = f"{_ACKED} AND bridge = {sql_text(bridge)} AND stream IS NOT NULL"
        self._bounds = " UNION ALL ".join(
            f"SELECT {sql_text(name)} AS stream, {span.bounds.first} AS low, {span.bounds.last} AS high, "
            f"{'true' if span.gaps else 'false'} AS gaps, {_moment(span.since)} AS since, {_moment(span.made)} AS made"
            for name, span in spans.items()
        )
        self._ranges = sorted((one.after, one.up_to) for one in spans.values())
        self.whole = self._ranges[0][0], max(up_to for _, up_to in self._ranges)

    def parts(self, size: int) -> list[Part]:
        """All sequences, in parts with ``size`` of those of the streams at most: what lies between these is not cut."""
        edges, done, room = [0], 0, size
        for after, up_to in self._ranges:
            at = max(after, done)
            while up_to - at > room:
                at, room = at + room, size
                edges.append(at)
            done, room = max(up_to, done), room - max(up_to - at, 0)
        return [*pairwise([*edges, 1 << 62])]

    def _placed(self, part: Part) -> str:
        """Flights, each beside the message at its sequence."""
        return f"""bounds AS ({self._bounds}),
picked AS (
  SELECT query_id, run_id, batch_id, stream, sequence, flight_id AS id, topic, size, sends, event_time,
         coalesce(publish_time, event_time) AS publish_time, coalesce(duplicate, false) AS duplicate
  FROM log WHERE {self._selection} AND {self._stored}{_in(part)}),
placed AS (
  SELECT l.*, s.sequence IS NOT NULL AS taken, s.time > l.event_time + INTERVAL '{MARGIN}' SECOND AS late, CASE
    WHEN s.id = l.id AND s.fits THEN 'content'
    WHEN s.id = l.id AND NOT s.fits AND s.topic = l.topic AND {_made_by("l")} THEN 'other'
    WHEN s.id = l.id AND s.fits IS NULL AND s.size <> l.size AND l.sends > 0 AND NOT l.duplicate THEN 'other'
    WHEN s.id = l.id THEN 'id'
    WHEN s.time > l.event_time + INTERVAL '{MARGIN}' SECOND THEN NULL
    WHEN s.pack AND l.sends = 0 THEN 'pack'
    WHEN s.id IS NULL AND s.size = l.size AND {_head("l.id")} = l.id
    THEN CASE WHEN l.event_time < b.made THEN 'unsure' WHEN s.topic = l.topic THEN 'place' ELSE 'moved' END
    ELSE NULL END AS found
  FROM picked l JOIN bounds b ON l.stream = b.stream LEFT JOIN (SELECT * FROM stored WHERE true{_in(part)}) s
  ON l.stream = s.stream AND l.sequence = s.sequence)"""

    def _free(self, part: Part, more: str = "") -> str:
        """SQL ``free``: stored messages at sequences that the log does not name."""
        return f"""free AS (
  SELECT s.* FROM (SELECT * FROM stored WHERE true{_in(part)}{more}) s LEFT JOIN (
    SELECT DISTINCT stream, sequence FROM log WHERE kind = 'flight' AND {self._stored}{_in(part)}) n
  ON s.stream = n.stream AND s.sequence = n.sequence WHERE n.sequence IS NULL)"""

    def _mine(self, ids: str) -> str:
        """SQL ``mine``: selected flights with ids of another table, whatever their outcome."""
        return f"""mine AS (
  SELECT flight_id AS id, min(query_id) AS query_id, min(run_id) AS run_id, min(batch_id) AS batch_id
  FROM log WHERE {self._selection} AND {IS_OUTCOME} AND flight_id IN (SELECT id FROM {ids}) GROUP BY flight_id)"""

    def _named(self, ids: str) -> str:
        """SQL ``named``: flights of all committed writes by which messages with ids of another table are stored."""
        return f"""named AS (
  SELECT stream, flight_id AS id, sequence FROM log
  WHERE kind = 'flight' AND committed AND {self._stored} AND flight_id IN (SELECT id FROM {ids})),
places AS (SELECT DISTINCT stream, sequence FROM named)"""

    def matches(self, part: Part) -> str:
        """SQL: the messages at the sequences of the flights."""
        return f"WITH {self._placed(part)}{_answer('placed', 'found')}"

    def again(self, part: Part) -> str:
        """SQL: the number of acknowledgements that share their message with another one, because its row was published
        again. Rows of one pack share its sequence."""
        return f"""WITH bounds AS ({self._bounds}),
picked AS (SELECT stream, sequence, sends FROM log WHERE {self._selection} AND {self._stored}{_in(part)})
SELECT count(*) - count(DISTINCT l.sequence) AS again FROM picked l JOIN bounds b ON l.stream = b.stream
LEFT JOIN (SELECT stream, sequence FROM stored WHERE pack{_in(part)}) p
ON l.stream = p.stream AND l.sequence = p.sequence
WHERE l.sequence >= b.low AND (p.sequence IS NULL OR l.sends > 0) GROUP BY l.stream"""

    def unmatched(self, part: Part) -> str:
        """The flights that :meth:`matches` has not found, or that have no sequence: by id, or else counted."""
        return f"""WITH {self._placed(part)},
loose AS (SELECT * FROM placed WHERE found IS NULL),
{self._named("loose")},
{self._free(self.whole, " AND id IS NULL")},
kept AS (SELECT DISTINCT stream, topic FROM free),
sought AS (
  SELECT p.*, i.stream IS NOT NULL AND (p.sequence IS NULL OR i.open = 1) AS known, i.fits = 1 AS fits,
         k.topic AS counted_as, row_number() OVER (
    PARTITION BY p.stream, k.topic, p.size, i.stream IS NULL ORDER BY p.event_time) AS nth
  FROM loose p LEFT JOIN (
    SELECT s.stream, s.id, min(CASE WHEN fits THEN 1 ELSE 0 END) AS fits,
           max(CASE WHEN n.sequence IS NULL OR {_head("s.id")} <> s.id THEN 1 ELSE 0 END) AS open
    FROM stored s LEFT JOIN places n ON s.stream = n.stream AND s.sequence = n.sequence
    WHERE s.id IN (SELECT id FROM loose) GROUP BY s.stream, s.id) i
  ON p.stream = i.stream AND p.id = i.id LEFT JOIN kept k ON p.stream = k.stream AND p.topic = k.topic),
judged AS (
  SELECT q.query_id, q.run_id, q.batch_id, q.stream, q.sequence, q.id, q.topic, CASE
    WHEN q.known AND q.sequence IS NOT NULL THEN 'elsewhere'
    WHEN q.known THEN CASE WHEN q.fits THEN 'content' ELSE 'id' END
    WHEN q.sequence IS NULL THEN CASE
      WHEN q.nth <= c.many AND {_head("q.id")} = q.id
      THEN CASE WHEN q.event_time < b.made THEN 'unsure' ELSE 'counted' END
      WHEN q.event_time < b.since THEN 'expired'
      WHEN b.gaps OR q.publish_time < b.since + INTERVAL '{MARGIN}' SECOND THEN 'unsure' ELSE 'missing' END
    WHEN q.sequence > b.high OR q.late THEN 'remade'
    WHEN q.taken THEN 'other'
    WHEN q.sequence < b.low THEN 'expired'
    WHEN b.gaps THEN 'unsure' ELSE 'missing' END AS verdict
  FROM sought q JOIN bounds b ON q.stream = b.stream LEFT JOIN (
    SELECT f.stream, s.topic, f.size, count(*) AS many FROM free f LEFT JOIN (
      SELECT DISTINCT stream, topic FROM loose) s ON f.stream = s.stream AND f.topic = s.topic
    GROUP BY f.stream, s.topic, f.size) c
  ON q.stream = c.stream AND coalesce(q.counted_as, '') = coalesce(c.topic, '') AND q.size = c.size
){_answer("judged", "verdict")}"""

    def others(self, part: Part) -> str:
        """SQL: stored messages at sequences that the log does not name, without copies of messages that it names.

        A write all of whose acknowledgements have a reason was logged with ``flightLogLevel=errors``, or may have been:
        its other messages are no findings."""
        return f"""WITH {self._free(part)}, {self._mine("free")},
said AS (
  SELECT flight_id AS id, max(CASE WHEN event IN ('acked', 'published') THEN 1 ELSE 0 END) AS stored,
         max(CASE WHEN {IS_IN_DOUBT} THEN 1 ELSE 0 END) AS doubt
  FROM log WHERE {IS_OUTCOME} AND flight_id IN (SELECT id FROM free) GROUP BY flight_id),
heads AS (SELECT DISTINCT {_head("flight_id")} AS head FROM log
          WHERE {self._selection} AND {self._stored} AND info IS NULL AND {_head("flight_id")} <> flight_id
            AND (query_id IS NULL AND batch_id IS NOT NULL OR {_made_by("log", "flight_id")})),
alike AS (
  SELECT DISTINCT stream, topic, size FROM log WHERE {self._selection} AND {self._stored} AND sequence IS NULL),
mapped AS (
  SELECT DISTINCT a.stream, a.size FROM alike a LEFT JOIN (SELECT DISTINCT stream, topic FROM stored WHERE id IS NULL) k
  ON a.stream = k.stream AND a.topic = k.topic WHERE k.topic IS NULL),
unsaid AS (
  SELECT f.*, d.doubt FROM free f LEFT JOIN said d ON f.id = d.id WHERE d.id IS NULL OR d.stored = 0),
judged AS (
  SELECT m.query_id, m.run_id, m.batch_id, f.stream, f.sequence, f.id, f.topic, CASE
    WHEN f.doubt = 1 THEN CASE WHEN m.id IS NULL THEN NULL ELSE 'landed' END
    WHEN m.id IS NOT NULL OR h.head IS NOT NULL THEN 'unlogged'
    WHEN f.id IS NULL AND coalesce(a.stream, p.stream) IS NOT NULL THEN NULL
    ELSE {"'foreign'" if self._foreign else "NULL"} END AS verdict
  FROM unsaid f LEFT JOIN mine m ON f.id = m.id
  LEFT JOIN heads h ON {_head("f.id")} = h.head
  LEFT JOIN mapped p ON f.stream = p.stream AND f.size = p.size LEFT JOIN alike a
  ON f.stream = a.stream AND f.topic = a.topic AND f.size = a.size){_answer("judged", "verdict", False)}"""

    def copies(self, digits: str) -> str:
        """SQL: stored messages with the id of an earlier message; the MD5 of the id begins with one of ``digits``."""
        more = f" AND substr(md5(id), 1, 1) IN ({', '.join(map(sql_text, digits))})"
        return f"""WITH twice AS (
  SELECT stream, id, min(sequence) AS first_one, min(CASE WHEN fits THEN 1 ELSE 0 END) AS fit
  FROM stored WHERE id IS NOT NULL{more} GROUP BY stream, id HAVING count(*) > 1),
{self._mine("twice")},
{self._named("twice")},
said AS (SELECT stream, id, count(DISTINCT sequence) + count(*) - count(sequence) AS many
         FROM named GROUP BY stream, id),
ranked AS (
  SELECT s.stream, s.sequence, s.id, s.topic, t.first_one, t.fit, {_head("s.id")} <> s.id AS made, d.many,
         row_number() OVER (PARTITION BY s.stream, s.id ORDER BY CASE
    WHEN n.sequence IS NULL AND {_head("s.id")} = s.id THEN 1 ELSE 0 END, s.sequence) AS nth
  FROM twice t JOIN stored s ON s.stream = t.stream AND s.id = t.id
  LEFT JOIN places n ON s.stream = n.stream AND s.sequence = n.sequence
  LEFT JOIN said d ON s.stream = d.stream AND s.id = d.id)
SELECT m.query_id, m.run_id, m.batch_id, s.stream,
       CASE WHEN s.made AND (s.fit = 1 OR {_made_by("m", "s.id")}) THEN 'copy' ELSE 'reused' END AS verdict,
       s.sequence, s.id, s.topic, s.first_one AS kept, 1 AS messages
FROM ranked s JOIN mine m ON s.id = m.id
WHERE s.nth > CASE WHEN s.made OR s.many IS NULL THEN 1 ELSE s.many END ORDER BY 4, 6"""


def _in(part: Part) -> str:
    return " AND sequence IS NULL" if isinstance(part, str) else f" AND sequence > {part[0]} AND sequence <= {part[1]}"


def _answer(table: str, verdict: str, unjudged: bool = True) -> str:
    """SQL: messages by write and verdict (``unjudged``: also without one); findings with sequence, id, topic."""
    write, matched = "query_id, run_id, batch_id, stream", ", ".join(map(sql_text, MATCHES))
    own = [
        f"CASE WHEN {verdict} IS NULL OR {verdict} IN ({matched}) THEN NULL ELSE {name} END"
        for name in ("sequence", "id", "topic")
    ]
    where = "" if unjudged else f" WHERE {verdict} IS NOT NULL"
    return f"""
SELECT {write}, {verdict} AS verdict, {own[0]} AS sequence, {own[1]} AS id, {own[2]} AS topic, count(*) AS messages
FROM {table}{where} GROUP BY {write}, {verdict}, {", ".join(own)} ORDER BY 4, 6, 7"""


def _moment(at: datetime | None) -> str:
    return "CAST(NULL AS TIMESTAMP)" if at is None else f"TIMESTAMP '{at.astimezone(UTC).isoformat()}'"


def compare(
    found: Audit, compared: Comparison, ask: Callable[[str], Iterable[Row]], size: int, *, unnumbered: bool
) -> None:
    """Note the answers to all questions, of ``size`` sequences at a time; ``unnumbered``: some flights have none."""
    parts = compared.parts(size)
    for part in parts:
        if found.add(ask(compared.matches(part))):
            found.add(ask(compared.unmatched(part)))
        found.again += sum(row["again"] for row in ask(compared.again(part)))
        found.add(ask(compared.others(part)))
    if unnumbered:
        found.add(ask(compared.unmatched(UNNUMBERED)))
    many = min(len(parts), 16)
    for first in range(many):
        found.add(ask(compared.copies(hexdigits[first:16:many])))
