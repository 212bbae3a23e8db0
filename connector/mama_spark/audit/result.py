"""The result of an audit: verdicts, their counts and examples, as text and JSON. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..contracts.record_log import Bounds
from ..flightlog.reading import tables_text

Row = dict[str, Any]

#: How an acknowledged message was matched -> what that proves.
MATCHES = {
    "content": "by id and content",
    "id": "by id",
    "pack": "in a pack at their sequence, which an attempt before had stored",
    "place": "by topic and size, at their sequence",
    "moved": "by size, at their sequence, under another topic",
    "elsewhere": "by id, at another sequence than the log says",
    "counted": "by the number of messages with their topic and size",
}
#: Matches without an id, of which copies cannot be found.
WITHOUT_ID = {name: MATCHES[name] for name in ("place", "moved", "counted")}
#: Verdicts that are errors.
FINDINGS = {
    "missing": "acknowledged, and not stored",
    "other": "another message is stored at the sequence",
    "remade": "the sequence was given again, or is yet to come: the stream was made again, or restored",
    "copy": "stored again",
    "reused": "stored with the id of another message, and no write says so: an id of a column may be anybody's",
    "unlogged": "stored with an id of these writes, and the log does not say so",
    "foreign": "stored, and not in the log",
}
#: If all messages have these verdicts, another stream may have been read.
_ELSEWHERE = {name: FINDINGS[name] for name in ("missing", "other", "remade")}
#: Verdicts that are neither matches nor findings.
APART = {
    "expired": "acknowledged, and older than what the stream has (limits, purges)",
    "unsure": "acknowledged, and not stored; a limit of the stream may have removed them",
    "landed": "not acknowledged, and stored (in doubt)",
}
#: Columns of the answers of a :class:`.Comparison`: a write (null where the message is of none), and the number of
#: messages with this verdict. A message without a match has its own row; verdict null: look for it.
ANSWER = ("query_id", "run_id", "batch_id", "stream", "verdict", "sequence", "id", "topic", "messages")


@dataclass(frozen=True, slots=True)
class Span:
    """The range of a stream that was read.

    :ivar after, up_to: sequences ``after < sequence <= up_to``
    :ivar since: time at which the first record that is left was stored; None: nothing was removed at the beginning
    :ivar gaps: whether the stream's limits may remove messages between others
    :ivar made: creation time of the stream; None: unknown
    """

    bounds: Bounds
    after: int
    up_to: int
    since: datetime | None = None
    gaps: bool = False
    made: datetime | None = None


@dataclass(slots=True)
class Audit:
    """The result of an audit of version ``version`` of the flight log at ``path``.

    :ivar rest: messages that cannot be compared: bridge, event, ack_level, messages
    :ivar limit: examples of each verdict
    :ivar spans: ranges that were read, by stream
    :ivar counts: messages by query_id, run_id, batch_id, stream, verdict
    :ivar examples: columns of :data:`ANSWER`, by verdict
    :ivar copies: stream and sequence of each later copy, and the sequence of the first one, which is kept
    :ivar again: second and later acknowledgements of one message, among those with a sequence in the log
    """

    path: str
    version: int
    rest: list[Row]
    limit: int = 5
    spans: dict[str, Span] = field(default_factory=dict)
    counts: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    examples: dict[str, list[Row]] = field(default_factory=dict)
    copies: list[tuple[str, int, int]] = field(default_factory=list)
    again: int = 0

    def add(self, answer: Iterable[Row]) -> int:
        """Note an answer; how many messages have no verdict."""
        unjudged = 0
        for row in answer:
            verdict = row["verdict"]
            if verdict is None:
                unjudged += row["messages"]
                continue
            self.counts[tuple(row[name] for name in ANSWER[:5])] += row["messages"]
            if verdict == "copy":
                self.copies.append((row["stream"], row["sequence"], row["kept"]))
            if verdict not in MATCHES and len(some := self.examples.setdefault(verdict, [])) < self.limit:
                some.append(row)
        return unjudged

    def sums(self) -> dict[str, int]:
        """Messages by verdict."""
        found: Counter[str] = Counter()
        for key, n in self.counts.items():
            found[key[4]] += n
        return {name: found[name] for name in (*MATCHES, *FINDINGS, *APART) if found[name]}

    def _sum(self, names: Mapping[str, str]) -> int:
        return sum(n for name, n in self.sums().items() if name in names)

    @property
    def findings(self) -> int:
        return self._sum(FINDINGS)

    @property
    def proven(self) -> bool:
        """Whether messages were compared, none is wrong, and none may be missing."""
        return not self.findings and self._sum(MATCHES) > 0 and "unsure" not in self.sums()

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 1 with findings, 2 without a decision."""
        return 1 if self.findings else 0 if self.proven else 2

    def verdict(self) -> str:
        if self.findings:
            differ = f"the log and what is stored differ in {self.findings:,} messages"
            if self._sum(MATCHES) or not self._sum(_ELSEWHERE):
                return differ
            return f"is this the server and stream of the log? {differ}, and agree in none"
        if self.proven:
            without = self._sum(WITHOUT_ID)
            partly = any(span.up_to < span.bounds.last for span in self.spans.values())
            once = ", each once up to the last sequence that was read" if partly else ", each once"
            once = f"; of {without:,} without ids nobody can tell whether once" if without else once
            again = f"; {self.again:,} were acknowledged again, as duplicates" if self.again else ""
            stored = self._sum(MATCHES) - self.again
            return f"all {stored:,} acknowledged messages that are not removed are stored{once}{again}"
        return "nobody can tell: " + ("messages may be missing" if self._sum(APART) else "there is nothing to compare")

    def writes(self) -> list[Row]:
        """Columns of :data:`WRITES`; those with findings first."""
        found: dict[tuple[Any, ...], Row] = {}
        for (*write, verdict), n in self.counts.items():
            key = dict(zip(WRITES, write, strict=False))
            one = found.setdefault(tuple(write), {**key, **dict.fromkeys(WRITES[4:], 0)})
            one["matched" if verdict in MATCHES else verdict] += n
        return sorted(found.values(), key=lambda one: not any(one[name] for name in FINDINGS))

    def head(self) -> list[str]:
        lines = [f"flight log   {self.path} (version {self.version})", f"verdict      {self.verdict()}"]
        for title, names in (("matched", MATCHES), ("FOUND", FINDINGS), ("apart", APART)):
            for name, n in self.sums().items():
                if name in names:
                    lines.append(f"{title:<13}{n:,} {names[name]} ({name})")
        for name, span in self.spans.items():
            lines.append(f"{'read':<13}{name}: sequences {span.after + 1:,} to {span.up_to:,} of {span.bounds.last:,}")
        for row in self.rest:
            what = f"{row['event']}, ack_level {row['ack_level']}, bridge {row['bridge']}"
            lines.append(f"not compared {row['messages']:,} {what}")
        return lines

    def text(self) -> str:
        """The result in several lines, for people."""
        return tables_text(self.head(), self.tables())

    def tables(self) -> list[tuple[str, list[Row], tuple[str, ...]]]:
        """Title, rows and columns of each table."""
        writes = self.writes()
        shown = tuple(name for name in WRITES if name in WRITES[:5] or any(one[name] for one in writes))
        examples = [one for name in (*FINDINGS, *APART) for one in self.examples.get(name, [])]
        names = ("verdict", "stream", "sequence", "id", "topic", "batch_id")
        return [("writes", writes[:MOST_WRITES], shown), ("examples", examples, names)]

    def json(self) -> str:
        """The result in one line of JSON."""
        fields = {
            "flight_log": self.path, "version": self.version, "verdict": self.verdict(), "findings": self.findings,
            "sums": self.sums(), "again": self.again, "writes": self.writes(), "examples": self.examples,
            "not_compared": self.rest,
            "read": {name: [span.after + 1, span.up_to] for name, span in self.spans.items()},
        }  # fmt: skip
        return json.dumps(fields, ensure_ascii=False, default=str)


#: Writes that a table shows at most; those with findings come first.
MOST_WRITES = 20
#: Columns of :meth:`Audit.writes`.
WRITES = ("query_id", "run_id", "batch_id", "stream", "matched", *FINDINGS, *APART)
