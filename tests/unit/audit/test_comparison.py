"""What the comparison of a flight log with what is stored finds: each finding planted, for each kind of write."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from mama_spark.audit.audit import STORED, span_of, stored_columns
from mama_spark.audit.comparison import Comparison, FlightSelection, compare, rest_question, spans_question
from mama_spark.audit.result import Audit, Span
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.contracts.record_log import Bounds
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.reading import open_log, query
from mama_spark.publishing.ids.ids import IdMaker

from tests.support.flight_logs import BATCH, STREAM, T0, flights, stage

NOW = datetime.fromtimestamp(T0 / 1e6, UTC)
BOUNDS = Bounds(1, 9, "")
#: A write of three messages to a stream with the name of the case.
WRITE = "query-1-0-0-" + 32 * "a"


def at(sequence: int, number: int | None, **other: Any) -> dict[str, Any]:
    """A stored message: the flight with this number, or a message without id."""
    own = {"sequence": sequence, "time": NOW, "id": number, "topic": "orders.new", "size": 100, "pack": False}
    return {**own, "fits": None, **other}


ALL = [at(n + 1, n) for n in range(3)]
NO_IDS = [at(n + 1, None) for n in range(3)]
UNNUMBERED = {"sequence": None, "duplicate": None}
LATE = NOW + timedelta(hours=1)
OWN = {"flight_id": pa.array(["k", "k", "l"])}
OWN_STORED = [at(n + 1, None, id=id_) for n, id_ in enumerate("kkl")]
NEARLY_DEFAULT = {"flight_id": pa.array([f"k-{10**9}-{32 * digit}-0" for digit in "123"])}
FOREIGN_IDS = {"flight_id": pa.array([f"another-0-0-{32 * digit}-0" for digit in "123"])}
OTHER_WRITE = "query-1-7-0-" + 32 * "b"
WITH_REASON = {
    "flight_id": pa.array([f"{OTHER_WRITE}-{n}" for n in range(3)]),
    "reasons": dict.fromkeys(range(3), ("OK", None, "perhaps stored twice")),
}
IN_DOUBT = {"failed": 1, "may_have_landed": np.array([False, False, True])}

#: Name -> columns of the flights, what is stored, what was read of the stream, messages by verdict.
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], dict[str, int]]] = {
    "content": ({}, [{**one, "fits": True} for one in ALL], {}, {"content": 3}),
    "id": ({}, ALL, {}, {"id": 3}),
    "without ids": ({}, NO_IDS, {}, {"place": 3}),
    "ids were sent": ({}, [*ALL[:2], at(3, None)], {}, {"id": 2, "other": 1}),
    "mapped topic": ({}, [{**one, "topic": "x"} for one in NO_IDS], {}, {"moved": 3}),
    "mapped topic, other content": ({}, [{**one, "topic": "x", "fits": False} for one in ALL], {}, {"id": 3}),
    "lost": ({}, ALL[:2], {}, {"id": 2, "missing": 1}),
    "lost without id": ({}, NO_IDS[:2], {}, {"place": 2, "missing": 1}),
    "limit of a topic": ({}, ALL[:2], {"gaps": True}, {"id": 2, "unsure": 1}),
    "removed at the beginning": ({}, ALL[1:], {"bounds": Bounds(2, 9, "")}, {"id": 2, "expired": 1}),
    "ends before": ({}, ALL[:2], {"bounds": Bounds(1, 2, "")}, {"id": 2, "remade": 1}),
    "given again": ({}, [at(1, None, id="x", time=LATE), *ALL[1:]], {}, {"id": 2, "remade": 1}),
    "other id": ({}, [at(1, None, id="x"), *ALL[1:]], {}, {"id": 2, "other": 1}),
    "other size without id": ({}, [at(1, None, size=7), *NO_IDS[1:]], {}, {"place": 2, "other": 1}),
    "other content": ({}, [at(1, 0, fits=False), *ALL[1:]], {}, {"id": 2, "other": 1}),
    "other size": ({}, [at(1, 0, size=7), *ALL[1:]], {}, {"id": 2, "other": 1}),
    "an id of two rows": ({"duplicate": np.ones(3, np.bool_)}, [at(1, 0, size=7), *ALL[1:]], {}, {"id": 3}),
    "own ids, used again": (OWN, OWN_STORED, {}, {"id": 3}),
    "own ids, stored again": (OWN, [*OWN_STORED, at(5, None, id="k")], {}, {"id": 3, "reused": 1}),
    "own ids, lost": (OWN, OWN_STORED[1:], {}, {"id": 2, "missing": 1}),
    "own ids that nearly are default ids": (NEARLY_DEFAULT, NO_IDS, {}, {"place": 3}),
    "own ids, no sequences": ({**OWN, **UNNUMBERED}, OWN_STORED, {}, {"id": 3}),
    "own ids that name another content": (
        FOREIGN_IDS,
        [at(n, None, id=f"another-0-0-{32 * str(n)}-0", fits=False) for n in (1, 2, 3, 4)],
        {},
        {"id": 3, "foreign": 1},
    ),
    "rows of a stored pack": ({"sends": 0}, [at(n, 7, pack=True, size=9) for n in (1, 2, 3)], {}, {"pack": 3}),
    "stored again": ({}, [*ALL, at(5, 0), at(6, 0)], {}, {"id": 3, "copy": 2}),
    "the first copy was kept": ({"sequence": np.array([1, 2, 8])}, ALL, {}, {"id": 2, "elsewhere": 1}),
    "not in the log": ({}, [*ALL, at(4, 7)], {}, {"id": 3, "unlogged": 1}),
    "not in a log of errors": (
        WITH_REASON,
        [at(n + 1, None, id=f"{OTHER_WRITE}-{n}") for n in range(4)],
        {},
        {"id": 3, "foreign": 1},
    ),
    "of others": ({}, [*ALL, at(4, None, id="x"), at(5, None)], {}, {"id": 3, "foreign": 2}),
    "in doubt": (IN_DOUBT, ALL, {}, {"id": 2, "landed": 1}),
    "in doubt, not stored": (IN_DOUBT, ALL[:2], {}, {"id": 2}),
    "refused, yet stored": ({"failed": 1}, ALL, {}, {"id": 2, "unlogged": 1}),
    "no sequences": (UNNUMBERED, ALL, {}, {"id": 3}),
    "no sequences, content": (UNNUMBERED, [{**one, "fits": True} for one in ALL], {}, {"content": 3}),
    "no sequences, lost and stored again": (UNNUMBERED, [*ALL[:2], at(5, 0)], {}, {"id": 2, "missing": 1, "copy": 1}),
    "neither sequences nor ids": (UNNUMBERED, NO_IDS, {}, {"counted": 3}),
    "no sequences, ids were sent": (UNNUMBERED, [*ALL[:2], at(3, None)], {}, {"id": 2, "missing": 1}),
    "neither, lost": (UNNUMBERED, NO_IDS[:2], {}, {"counted": 2, "missing": 1}),
    "neither, removed": (UNNUMBERED, NO_IDS[2:], {"since": LATE}, {"counted": 1, "expired": 2}),
    "neither, mapped topic": (UNNUMBERED, [{**one, "topic": "x"} for one in NO_IDS], {}, {"counted": 3}),
    "neither, removed meanwhile": (
        UNNUMBERED,
        NO_IDS[2:],
        {"since": NOW - timedelta(minutes=1)},
        {"counted": 1, "unsure": 2},
    ),
    "without ids, made since": ({}, NO_IDS, {"made": LATE}, {"unsure": 3}),
    "neither, made since": (UNNUMBERED, NO_IDS, {"made": LATE}, {"unsure": 3}),
    "not stored by promise": ({"ack_level": "accepted"}, [], {}, {}),
}


def stored_without_ids(messages: list[dict[str, Any]]) -> bool:
    return any(one["id"] is None for one in messages[:1])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """All cases in one log, a stream each, compared in parts of two sequences."""
    log, stored = (str(tmp_path_factory.mktemp("audit") / name) for name in ("log", "stored"))
    columns, rows, spans = [], [], {}
    for number, (name, (other, messages, span, _)) in enumerate(CASES.items()):
        ids = name if stored_without_ids(messages) else f"{WRITE[:-2]}{number:02x}"
        columns.append(flights(3, ids, stream=name, **other))
        for one in messages:
            rows.append(
                {**one, "stream": name, "id": f"{ids}-{one['id']}" if isinstance(one["id"], int) else one["id"]}
            )
        spans[name] = replace(Span(BOUNDS, 0, 9), **span)
    commit(log, {}, STREAM, stage(log, STREAM, *columns))
    commit(log, {}, BATCH, stage(log, BATCH, flights(2, "another write")))
    write_deltalake(stored, pa.Table.from_pylist(rows, schema=STORED))
    table, selection = open_log(log, {}), FlightSelection(query="query-1", batch=0)
    assert {row["stream"] for row in query(table, {}, spans_question(selection, "nats"))} <= spans.keys()
    for none in (
        FlightSelection(since=LATE),
        FlightSelection(until=NOW),
        FlightSelection(run="o'k"),
        FlightSelection(batch=1),
    ):
        assert query(table, {}, spans_question(none, "nats")) == []
    audit = Audit(log, 0, query(table, {}, rest_question(selection, "nats")), 3, spans)
    compared = Comparison(selection, "nats", spans, foreign=True)
    others = DeltaTable(stored)
    compare(audit, compared, lambda sql: query(table, {}, sql, stored=others), 2, unnumbered=True)
    return audit


@pytest.mark.parametrize(
    ("ranges", "edges"),
    [
        ([(0, 9)], [2, 4, 6, 8]),
        ([(4, 8)], [6]),
        ([(0, 1), (10**12, 10**12 + 2)], [10**12 + 1]),
        ([(0, 5), (1, 3), (4, 7)], [2, 4, 6]),
        ([(0, 4), (10**12, 10**12 + 1)], [2, 10**12]),
    ],
    ids=str,
)
def test_parts_hold_few_sequences_of_streams_and_no_stretch_without_any(
    ranges: list[tuple[int, int]], edges: list[int]
) -> None:
    spans = {str(number): Span(BOUNDS, *both) for number, both in enumerate(ranges)}
    parts = Comparison(FlightSelection(), "nats", spans).parts(2)
    assert parts == [*pairwise([0, *edges, 1 << 62])]


@pytest.mark.parametrize("case", CASES)
def test_verdicts(found: Audit, case: str) -> None:
    sums = {key[4]: n for key, n in found.counts.items() if key[3] == case}
    assert sums == CASES[case][3]


def test_what_is_said(found: Audit) -> None:
    assert (found.exit_code, found.rest) == (
        1, [{"bridge": "nats", "event": "acked", "ack_level": "accepted", "messages": 3}]
    )  # fmt: skip
    assert "not compared 3 acked, ack_level accepted, bridge nats" in found.text()
    assert {verdict: len(rows) for verdict, rows in found.examples.items()}["missing"] == 3, "of five"
    (lost,) = [one for one in found.examples["missing"] if one["stream"] == "lost"]
    assert (lost["sequence"], lost["id"][-2:], lost["topic"], lost["batch_id"]) == (3, "-2", "orders.new", 0)
    assert sorted(found.copies) == [
        ("no sequences, lost and stored again", 5, 1),
        ("stored again", 5, 1),
        ("stored again", 6, 1),
    ]


@pytest.mark.parametrize(
    ("verdicts", "code", "says"),
    [
        ({"content": 2, "expired": 1, "landed": 1}, 0, "all 2 acknowledged messages that are not removed are stored"),
        ({"id": 2, "place": 1}, 0, "are stored; of 1 without ids nobody can tell whether once"),
        ({"content": 2, "unsure": 1}, 2, "nobody can tell: messages may be missing"),
        ({"expired": 1}, 2, "nobody can tell"),
        ({}, 2, "nobody can tell: there is nothing to compare"),
        ({"id": 5, "copy": 1}, 1, "verdict      the log and what is stored differ in 1 message"),
        ({"other": 5}, 1, "is this the server and stream of the log? the log and what is stored differ in 5 messages"),
        ({"foreign": 5, "expired": 1}, 1, "verdict      the log and what is stored differ in 5 messages"),
    ],
)
def test_exit_codes(verdicts: dict[str, int], code: int, says: str) -> None:
    audit = Audit("log", 0, [])
    audit.counts.update({("q", "r", 0, "S", name): n for name, n in verdicts.items()})
    assert audit.exit_code == code
    assert says in audit.text()


@pytest.mark.parametrize(("later", "up_to"), [({}, 699), ({"later": 0}, 100), ({"later": 3600}, 900)])
def test_copies_are_found_that_were_stored_so_much_later(later: dict[str, int], up_to: int) -> None:
    """A message was stored each second; that of the flight is the hundredth."""
    log: Any = SimpleNamespace(
        bounds=lambda: Bounds(1, 900, ""), removal=SimpleNamespace(between=False), made=None,
        sequence_at=lambda micros: (micros - T0) // 1_000_000 + 100,
    )  # fmt: skip
    span = span_of(log, {"first": NOW, "last": NOW, "low": 100, "high": 100}, **later)
    assert (span.after, span.up_to) == (0, up_to)
    audit = Audit("log", 0, [], spans={"S": span})
    audit.counts["q", "r", 0, "S", "content"] = 1
    assert audit.verdict().endswith("each once" if up_to == 900 else "each once up to the last sequence that was read")


def test_a_batch_that_was_repeated_is_counted_once(tmp_path: Path) -> None:
    """Two of three rows again, with the sequences of the first write; one message was removed."""
    log, stored = str(tmp_path / "log"), str(tmp_path / "stored")
    ids = f"{WRITE}-0"
    commit(log, {}, STREAM, stage(log, STREAM, flights(4, ids, stream="S", sequence=np.arange(1, 5))))
    commit(log, {}, BATCH, stage(log, BATCH, flights(3, ids, stream="S", sequence=np.arange(1, 4), sends=0)))
    rows = [at(n, None, stream="S", id=f"{ids}-{n - 1}") for n in (2, 3, 4)]
    write_deltalake(stored, pa.Table.from_pylist(rows, schema=STORED))
    spans = {"S": Span(Bounds(2, 9, ""), 1, 9)}
    audit, others, table = Audit(log, 0, [], 3, spans), DeltaTable(stored), open_log(log, {})
    compared = Comparison(FlightSelection(), "nats", spans)
    compare(audit, compared, lambda sql: query(table, {}, sql, stored=others), 2, unnumbered=False)
    assert (audit.sums(), audit.again) == ({"id": 5, "expired": 2}, 2)
    assert audit.verdict().startswith("all 3 acknowledged messages")
    assert audit.verdict().endswith("each once; 2 were acknowledged again, as duplicates")


# --- what is stored ------------------------------------------------------------------------------------------------


HEADERS = [{"a": ["1"], "b": ["2", "3"]}, None]


@pytest.mark.parametrize("headers", [None, HEADERS])
@pytest.mark.parametrize("streams", [None, ["S", "S"]])
def test_content_that_an_id_names_is_proven(headers: Any, streams: list[str] | None) -> None:
    batch = MessageBatch.of(["t.a", "t.b"], [b"x", b"y"], headers, streams=streams)
    ids = IdMaker("write", 1, 0).ids(batch)

    def fits(payloads: list[bytes], ids: pa.Array = ids) -> list[bool | None]:
        times = pa.array([T0, T0])
        found = stored_columns("S", pa.array([1, 2]), times, batch.topics, pa.array(payloads), ids, batch.headers)
        assert found.column("pack").to_pylist() == [False, False]
        return list(found.column("fits").to_pylist())

    assert fits([b"x", b"y"]) == [True, True]
    wrong = False if headers is None else None  # headers may be the server's
    assert fits([b"x!", b"y!"]) == [wrong, False]
    assert fits([b"x", b"y"], pa.array(["mine", None])) == [None, None]


def test_packs_are_known_by_their_header() -> None:
    headers = pa.array([[("Mama-Pack", ["lines/1"])], None], HEADERS_TYPE)
    where, topics, payloads = (pa.array([1, 2]), pa.array([T0, T0])), pa.array(["t", "t"]), pa.array([b"x", b"y"])
    found = stored_columns("S", *where, topics, payloads, pa.nulls(2, pa.string()), headers)
    assert found.column("pack").to_pylist() == [True, False]
