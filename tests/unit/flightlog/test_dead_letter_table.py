"""The dead-letter table: rows in full, staged by tasks and committed before the flight log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from mama_spark.contracts.errors import FlightLogError, SchemaError
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.maintenance import adopt_orphans
from mama_spark.flightlog.schema import DEAD_LETTERS
from mama_spark.flightlog.staging import DeadLetterStaging
from mama_spark.flightlog.storage import TableStore

from tests.support.flight_logs import (
    BATCH,
    STREAM,
    T0,
    abort_dead_letters,
    commit_dead_letters,
    flights,
    rows,
    stage,
    stage_letters,
)


def ids(table: Path) -> list[tuple[str, bool]]:
    return [(r["flight_id"], r["committed"]) for r in rows(table)]


def test_dead_letters_have_the_row_in_full_and_the_reason(tmp_path: Path) -> None:
    staging = DeadLetterStaging(str(tmp_path), {}, STREAM, 3, 1)
    staging.check()
    staging.add_dead_letters(
        pa.array(["id-0", None]),
        pa.array(["a.b", None]).dictionary_encode(),
        pa.array([b"\x00\xff", None], pa.binary()),
        pa.array([[("h", ["1", "2"])], None], HEADERS_TYPE),
        [("TOO_LARGE", 413, "1 MB"), ("INVALID_ARG", None, None)],
        np.array([T0, T0 + 1]),
    )
    (part,) = staging.close()
    assert part.rows == 2
    assert commit_dead_letters(str(tmp_path), {}, STREAM, [part], app=("query-1", 0)).committed == 1
    first, second = rows(tmp_path)
    at = datetime.fromtimestamp(T0 / 1e6, UTC)
    assert first == {
        "flight_id": "id-0", "topic": "a.b", "headers": [("h", ["1", "2"])], "payload": b"\x00\xff",
        "status": "TOO_LARGE", "code": 413, "info": "1 MB", "event_time": at, "query_id": "query-1",
        "run_id": "run-1", "bridge": "nats", "batch_id": 0, "partition_id": 3, "task_attempt": 1,
        "event_date": at.date(), "committed": True,
    }  # fmt: skip
    full = ("flight_id", "topic", "headers", "payload", "code", "info")
    assert {second[name] for name in full} == {None}
    assert second["status"] == "INVALID_ARG"


def test_columns_of_the_dataframe_are_beside_the_row_and_are_added_to_a_table_without_them(tmp_path: Path) -> None:
    commit_dead_letters(str(tmp_path), {}, STREAM, stage_letters(tmp_path, STREAM, 1))
    extra = [pa.field("order", pa.int64()), pa.field("customer", pa.string())]
    staging = DeadLetterStaging(str(tmp_path), {}, BATCH, 0, 0, extra=extra)
    staging.check()
    staging.add_dead_letters(
        pa.array(["id-7"]), pa.array(["a.b"]), pa.array([b"7"]), None, [("TOO_LARGE", 413, "1 MB")],
        np.array([T0]), pa.record_batch([pa.array([7]), pa.array(["x"])], schema=pa.schema(extra)),
    )  # fmt: skip
    commit_dead_letters(str(tmp_path), {}, BATCH, staging.close(), extra=extra)
    found = {row["flight_id"]: (row["order"], row["customer"]) for row in rows(tmp_path)}
    assert found == {"id-7": (7, "x"), "dead-0": (None, None)}
    commit_dead_letters(str(tmp_path), {}, STREAM, stage_letters(tmp_path, STREAM, 1, "later"), app=("q", 1))
    with pytest.raises(SchemaError, match="flightLogColumns: column 'status'"):
        DeadLetterStaging(str(tmp_path), {}, BATCH, 0, 0, extra=[pa.field("status", pa.string())])


def test_table_has_the_documented_columns_and_partitions(tmp_path: Path) -> None:
    commit_dead_letters(str(tmp_path), {}, BATCH, stage_letters(tmp_path, BATCH, 1))
    table = DeltaTable(tmp_path)
    assert sorted(f.name for f in table.schema().fields) == sorted(DEAD_LETTERS.names)
    assert table.metadata().partition_columns == ["event_date", "committed"]


def test_without_dead_letters_there_is_no_part_and_close_may_be_repeated(tmp_path: Path) -> None:
    staging = DeadLetterStaging(str(tmp_path), {}, BATCH, 0, 0)
    staging.check()
    staging.add_dead_letters(
        pa.array([], pa.string()), pa.array([], pa.string()), None, None, [], np.array([], np.int64)
    )
    assert staging.close() == []
    parts = stage_letters(tmp_path, BATCH, 2)
    assert [p.rows for p in parts] == [2]


def test_large_dead_letters_are_written_as_several_parts(tmp_path: Path) -> None:
    staging = DeadLetterStaging(str(tmp_path), {}, BATCH, 0, 0, part_rows=10)
    for i in range(3):
        payload = pa.array([np.random.default_rng(i).bytes(100_000)] * 10, pa.binary())
        names = pa.array([f"{i}-{j}" for j in range(10)])
        staging.add_dead_letters(names, names, payload, None, [("TOO_LARGE", 413, "big")] * 10, np.full(10, T0))
    assert [p.rows for p in staging.close()] == [10, 10, 10]


def test_abort_after_a_commit_does_nothing(tmp_path: Path) -> None:
    parts = stage_letters(tmp_path, STREAM, 1)
    commit_dead_letters(str(tmp_path), {}, STREAM, parts, app=("query-1", 0))
    assert abort_dead_letters(str(tmp_path), {}, STREAM, parts).recorded
    assert ids(tmp_path) == [("dead-0", True)]


def test_batch_with_both_tables_dead_letters_first(tmp_path: Path) -> None:
    """A crash between the two commits is repaired by repeating both: no letter without its flight, none twice."""
    letters, log = tmp_path / "letters", tmp_path / "log"
    dead = stage_letters(letters, STREAM, 1)
    parts = stage(log, STREAM, flights(3, failed=1))
    app = ("query-1", 0)
    assert commit_dead_letters(str(letters), {}, STREAM, dead, app=app).committed == 1
    assert TableStore(str(log), {}).table() is None  # here the driver died
    assert commit_dead_letters(str(letters), {}, STREAM, dead, app=app).committed == 0
    assert commit(str(log), {}, STREAM, parts, app=app).committed == 1
    assert ids(letters) == [("dead-0", True)]
    assert [r["event"] for r in rows(log)] == ["acked", "acked", "completed_exceptionally"]


def test_dead_letters_that_no_commit_refers_to_are_adopted(tmp_path: Path) -> None:
    stage_letters(tmp_path, BATCH, 2)
    assert adopt_orphans(str(tmp_path), {}, timedelta(seconds=-5)).rows == 2
    assert ids(tmp_path) == [("dead-0", False), ("dead-1", False)]


def test_check_refuses_a_flight_log_and_a_foreign_table(tmp_path: Path) -> None:
    commit(str(tmp_path / "log"), {}, BATCH, stage(tmp_path / "log", BATCH, flights(1)))
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    for name in ("log", "other"):
        with pytest.raises(FlightLogError, match=r"deadLetterTable: .* is another table"):
            DeadLetterStaging(str(tmp_path / name), {}, BATCH, 0, 0).check()
