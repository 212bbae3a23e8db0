"""Parts: what a task writes, and what it finds out before it publishes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mama_spark.contracts.errors import FlightLogError, SchemaError, Unavailable
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.flightlog.columns import FlightColumns, LoggedEvent
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.log_level import Level
from mama_spark.flightlog.parts import part_of_file
from mama_spark.flightlog.schema import table_schema
from mama_spark.flightlog.staging import Staging
from mama_spark.flightlog.storage import TableStore

from tests.support.flight_logs import BATCH, STREAM, T0, flights, stage
from tests.support.tables import each


def read(table: Path, parts: list[Any]) -> list[dict[str, Any]]:
    return [row for p in parts for row in pq.read_table(table / p.path).to_pylist()]


def test_columns_come_in_the_order_of_the_documented_schema() -> None:
    names = table_schema([pa.field("order_id", pa.int64())]).names
    assert names[:4] == ["kind", "flight_id", "event", "event_time"]
    assert names[-5:] == ["order_id", "payload", "headers", "event_date", "committed"]


@each("names", [["topic"], ["Topic"], ["committed"], ["a", "A"]])
def test_extra_column_with_a_name_of_ours_is_refused(names: list[str]) -> None:
    with pytest.raises(SchemaError, match=names[-1]):
        table_schema([pa.field(n, pa.int64()) for n in names])


def test_part_holds_what_was_handed_over(tmp_path: Path) -> None:
    parts = stage(tmp_path / "log", STREAM, flights(3, failed=1))
    assert [(p.rows, p.counts, p.event_date) for p in parts] == [
        (3, {"acked": 2, "completed_exceptionally": 1}, "2026-09-21")
    ]
    assert (parts[0].min_time, parts[0].max_time) == (T0, T0 + 2000)
    assert parts[0].path.startswith("parts/query-1/0/")
    assert parts[0].size == (tmp_path / "log" / parts[0].path).stat().st_size
    first, _, last = read(tmp_path / "log", parts)
    sent = datetime.fromtimestamp(T0 / 1e6, UTC)
    assert first == {
        "kind": "flight", "flight_id": "id-0", "event": "acked", "event_time": sent,
        "publish_time": sent - timedelta(microseconds=500), "latency_us": 500, "topic": "orders.new", "size": 100,
        "stream": "ORDERS", "sequence": 1, "duplicate": False, "ack_level": "stored", "status": None, "code": None,
        "info": None, "may_have_landed": False, "sends": 1, "dead_lettered": None, "rows": 1, "publisher_state": None,
        "query_id": "query-1", "run_id": "run-1", "bridge": "nats", "batch_id": 0, "partition_id": 0,
        "task_attempt": 0, "payload": None, "headers": None,
    }  # fmt: skip
    assert (last["status"], last["code"], last["info"]) == ("PUBLISH_ERROR_NOT_ENTITLED", 403, "denied")


def test_chunks_that_differ_in_what_they_know_go_into_one_part(tmp_path: Path) -> None:
    never_sent = FlightColumns(
        flight_id=pa.array([None], pa.string()),
        topic=pa.array([None], pa.string()),
        size=np.zeros(1, np.int32),
        event=pa.array(["completed_exceptionally"]),
        event_time=np.array([T0]),
        publish_time=np.array([-1]),
        reasons={0: ("INVALID_ARG", None, "null id")},
        may_have_landed=np.array([True]),
        sends=0,
        payload=pa.array([b"x"]),
        headers=pa.array([[("a", ["b"])]], HEADERS_TYPE),
        extra=pa.record_batch({"order": pa.array([7])}),
    )
    parts = stage(tmp_path / "log", BATCH, flights(2), never_sent, extra=[pa.field("order", pa.int64())])
    got = read(tmp_path / "log", parts)
    columns = {
        "flight_id": ["id-0", "id-1", None], "sequence": [1, 2, None], "ack_level": ["stored", "stored", None],
        "stream": ["ORDERS", "ORDERS", None], "duplicate": [False, False, None],
        "may_have_landed": [False, False, True], "sends": [1, 1, 0], "order": [None, None, 7],
        "payload": [None, None, b"x"], "headers": [None, None, [("a", ["b"])]], "info": [None, None, "null id"],
    }  # fmt: skip
    assert {name: [r[name] for r in got] for name in columns} == columns
    assert [r["publish_time"] is None for r in got] == [False, False, True]


TOPICS = [
    pa.array(["a", None, "b"]),
    pa.array(["c", "a", "c"]).dictionary_encode(),
    pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), pa.array(["b", "d"], pa.large_string())),
    pa.DictionaryArray.from_arrays(pa.array([1, 0, 2], pa.int32()), pa.array(["a", None, "e"])),
]


@pytest.mark.parametrize("gathered", [1, 32_768])
def test_topics_and_streams_of_any_type_go_into_one_part(
    tmp_path: Path, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mama_spark.flightlog.staging._GATHER_ROWS", gathered)
    parts = stage(tmp_path / "log", BATCH, *(flights(3, topic=t, stream=t) for t in TOPICS))
    (part,) = parts
    got = read(tmp_path / "log", parts)
    assert [row["topic"] for row in got] == ["a", None, "b", "c", "a", "c", "d", None, "b", None, "a", "e"]
    assert [row["stream"] for row in got] == [row["topic"] for row in got]
    file = pq.ParquetFile(tmp_path / "log" / part.path)
    assert file.schema_arrow.field("topic").type == pa.string(), "what others read has no type of its own"


def test_topics_of_other_rows_are_not_in_the_file(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).bytes(16 * 5_000).hex()
    names = pa.array([noise[32 * i : 32 * i + 32] for i in range(5_000)])
    few = pa.DictionaryArray.from_arrays(pa.array([7, 4_999, 7], pa.int32()), names)
    parts = stage(tmp_path / "log", BATCH, flights(3, topic=few))
    assert [row["topic"] for row in read(tmp_path / "log", parts)] == [names[i].as_py() for i in (7, 4_999, 7)]
    assert parts[0].size < 20_000


@pytest.mark.parametrize(
    ("level", "kept", "unacknowledged"),
    [(Level.ALL, ["published", "acked", "timeout"], 2), (Level.OUTCOMES, ["acked", "timeout"], 2),
     (Level.ERRORS, ["timeout"], 0)],
)  # fmt: skip
def test_level_says_which_events_become_rows(
    tmp_path: Path, level: Level, kept: list[str], unacknowledged: int
) -> None:
    """Published is an outcome where nothing is acknowledged."""
    some = flights(3, event=np.array([0, 1, 3], np.uint8), reasons={2: ("TIMEOUT", None, "late")})
    got = read(tmp_path / "log", stage(tmp_path / "log", BATCH, some, level=level))
    assert [r["event"] for r in got] == kept
    assert [r["info"] for r in got] == [None] * (len(kept) - 1) + ["late"]
    some = flights(2, event=np.zeros(2, np.uint8), ack_level="none")
    assert len(read(tmp_path / "log", stage(tmp_path / "log", STREAM, some, level=level))) == unacknowledged


def test_publisher_and_topic_events_are_rows_at_every_level(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), {}, STREAM, 3, 1, level=Level.ERRORS)
    staging.add_events([LoggedEvent("publisher", "create", T0, info="hello", publisher_state="LIVE")])
    staging.add_events([LoggedEvent("topic", "PUBLISH_ERROR", T0 + 1, "a.b", "TIMEOUT", 7)])
    staging.add_flights(flights(2, failed=1))
    got = sorted(read(tmp_path, staging.close()), key=lambda r: r["event_time"])
    assert [(r["kind"], r["event"], r["publisher_state"], r["topic"]) for r in got] == [
        ("publisher", "create", "LIVE", None),
        ("topic", "PUBLISH_ERROR", None, "a.b"),
        ("flight", "completed_exceptionally", None, "orders.new"),
    ]
    assert {(r["partition_id"], r["task_attempt"], r["query_id"]) for r in got} == {(3, 1, "query-1")}


def test_a_part_holds_one_utc_day_across_midnight(tmp_path: Path) -> None:
    midnight = int(datetime(2026, 9, 22, tzinfo=UTC).timestamp() * 1e6)
    parts = stage(tmp_path, BATCH, flights(5, at=midnight - 2000))
    assert sorted((p.event_date, p.rows) for p in parts) == [("2026-09-21", 2), ("2026-09-22", 3)]


def test_parts_are_closed_every_so_many_rows(tmp_path: Path) -> None:
    parts = stage(tmp_path, BATCH, *(flights(10_000, name=str(i)) for i in range(10)), part_rows=20_000)
    assert [p.rows for p in parts] == [20_000] * 5


def test_part_is_described_in_its_own_footer(tmp_path: Path) -> None:
    (part,) = stage(tmp_path, BATCH, flights(3, failed=1))
    assert part_of_file(TableStore(str(tmp_path), {}), part.path, part.size) == part


def test_unfinished_part_is_not_seen(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), {}, BATCH, 0, 0)
    for i in range(10):
        staging.add_flights(flights(10_000, name=str(i)))
    del staging
    assert TableStore(str(tmp_path), {}).list_files("parts") == []


@each("name", ["../../etc", "a/b", "_hidden", ".x", "naïve id", ""])
def test_folder_of_a_run_is_always_one_plain_name(name: str) -> None:
    folder = WriteId(None, name or "x", None, "nats").prefix
    assert folder.count("/") == 1
    assert folder[0].isalnum()
    assert ".." not in folder
    assert folder != WriteId(None, name + "!", None, "nats").prefix


def test_id_and_size_of_a_row_cost_at_most_32_bytes(tmp_path: Path) -> None:
    n = 100_000
    noise = np.random.default_rng(1).bytes(16 * n).hex()
    query = "5f2d7e64-6a9c-4f6b-9a53-0f6f6f0e7c11"
    ids = pa.array([f"{query}-0-1-{noise[32 * i : 32 * i + 32]}-0" for i in range(n)])
    times = T0 + np.cumsum(np.random.default_rng(2).integers(1, 20, n))
    latency = np.random.default_rng(3).integers(300, 9_000, n)
    some = flights(n, flight_id=ids, event_time=times, publish_time=times - latency, latency_us=latency)
    parts = stage(tmp_path, WriteId(query, "run", 0, "nats"), some)
    assert sum(p.size for p in parts) / n <= 32


# --- trouble found before the first publish --------------------------------------------------------------------


def test_check_makes_the_folder_and_leaves_no_file(tmp_path: Path) -> None:
    Staging(str(tmp_path / "a" / "log"), {}, BATCH, 0, 0).check()
    assert [p for p in (tmp_path / "a" / "log").rglob("*") if p.is_file()] == []


def test_check_refuses_a_type_that_delta_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="wait"):
        Staging(str(tmp_path), {}, BATCH, 0, 0, extra=[pa.field("wait", pa.duration("us"))]).check()


def test_full_disk_ends_the_task_with_a_clear_error(tmp_path: Path) -> None:
    """A file size limit in a process of its own stands for the full disk; nobody waits for ever."""
    script = textwrap.dedent("""
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        import numpy as np
        from tests.support.flight_logs import BATCH, flights
        from mama_spark.contracts.errors import Unavailable
        from mama_spark.flightlog.staging import Staging
        import pyarrow as pa
        staging = Staging(sys.argv[1], {}, BATCH, 0, 0)
        staging.check()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        noise = pa.array([np.random.default_rng(i).bytes(1000) for i in range(1000)], pa.binary())
        try:
            for i in range(100):
                staging.add_flights(flights(1000, payload=noise))
            staging.close()
        except Unavailable as e:
            print("told", e)
        try:
            staging.close()
        except Unavailable:
            print("told again")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # for coverage
    """)
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert "told writing" in ran.stdout
    assert "File too large" in ran.stdout
    assert ran.stdout.endswith("told again\n")
    assert TableStore(str(tmp_path / "log"), {}).list_files("parts") == []


@pytest.mark.parametrize("ahead", [False, True], ids=["with rows", "ahead of rows"])
def test_storage_that_fails_when_a_file_is_opened_is_reported_at_the_latest_by_close(
    tmp_path: Path, ahead: bool
) -> None:
    staging = Staging(str(tmp_path / "log"), {}, BATCH, 0, 0)
    (tmp_path / "log").write_text("in the way")
    if ahead:
        staging.prepare()
    staging.add_flights(flights())
    with pytest.raises((Unavailable, FlightLogError), match="log"):
        staging.close()


@pytest.mark.parametrize("n", [0, 3])
def test_file_that_was_opened_ahead_takes_the_rows_and_without_any_is_gone(tmp_path: Path, n: int) -> None:
    staging = Staging(str(tmp_path), {}, BATCH, 0, 0)
    staging.prepare()
    staging.prepare()
    if n:
        staging.add_flights(flights(n))
    parts = staging.close()
    assert [row["flight_id"] for row in read(tmp_path, parts)] == [f"id-{i}" for i in range(n)]
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        part.path for part in parts
    ]
