"""The commit protocol: each part at most once, each batch once, failed attempts marked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError
from mama_spark.contracts.errors import FlightLogError, SchemaError
from mama_spark.flightlog import transaction
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.folder import WriteId, mark_folder
from mama_spark.flightlog.maintenance import adopt_orphans, maintain
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.schema import table_schema
from mama_spark.flightlog.staging import Staging
from mama_spark.flightlog.storage import TableStore, existing_table
from mama_spark.flightlog.transaction import add_action, add_and_remove

from tests.support.flight_logs import BATCH, STREAM, T0, flights, rows, set_features, stage

APP = ("query-1", 0)


def marks(table: Path) -> list[tuple[str, bool]]:
    """(flight id, committed) of every row."""
    return sorted((r["flight_id"], r["committed"]) for r in rows(table))


def test_first_commit_creates_the_table_and_adds_all_parts_at_once(tmp_path: Path) -> None:
    parts = stage(tmp_path, STREAM, flights(2, "a")) + stage(tmp_path, STREAM, flights(1, "b"))
    result = commit(str(tmp_path), {}, STREAM, parts, app=APP)
    assert (result.committed, result.uncommitted, result.version) == (2, 0, 1)
    assert marks(tmp_path) == [("a-0", True), ("a-1", True), ("b-0", True)]
    assert DeltaTable(tmp_path).transaction_version("query-1") == 0


@pytest.mark.parametrize(("write_id", "app"), [(STREAM, APP), (BATCH, None), (BATCH, ("nightly", 7))])
def test_repeated_commit_and_abort_after_it_change_nothing(
    tmp_path: Path, write_id: WriteId, app: tuple[str, int] | None
) -> None:
    """Spark aborts after a commit that raised, with the same messages."""
    parts = stage(tmp_path, write_id, flights(2))
    first = commit(str(tmp_path), {}, write_id, parts, app=app)
    second = commit(str(tmp_path), {}, write_id, parts, app=app)
    assert (second.committed, second.uncommitted, second.version) == (0, 0, first.version)
    stage(tmp_path, write_id, flights(1, "zombie"))
    assert abort(str(tmp_path), {}, write_id, parts, app=app).version == first.version
    assert marks(tmp_path) == [("id-0", True), ("id-1", True)]


def test_abort_finds_what_finished_tasks_left_and_marks_it(tmp_path: Path) -> None:
    stage(tmp_path, BATCH, flights(2))
    assert abort(str(tmp_path), {}, BATCH).uncommitted == 1
    assert abort(str(tmp_path), {}, BATCH).uncommitted == 0
    assert marks(tmp_path) == [("id-0", False), ("id-1", False)]


def test_abort_of_a_write_that_left_nothing_makes_no_table(tmp_path: Path) -> None:
    abort(str(tmp_path / "log"), {}, BATCH)
    assert not (tmp_path / "log").exists()


def test_failed_batch_that_is_restarted_shows_both_attempts(tmp_path: Path) -> None:
    stage(tmp_path, STREAM, flights(2, "first"))
    abort(str(tmp_path), {}, STREAM)
    again = WriteId("query-1", "run-2", 0, "nats")
    result = commit(str(tmp_path), {}, again, stage(tmp_path, again, flights(2, "second")), app=APP)
    assert (result.committed, result.uncommitted) == (1, 0)
    assert marks(tmp_path) == [("first-0", False), ("first-1", False), ("second-0", True), ("second-1", True)]


def test_commit_adopts_what_a_killed_driver_left_of_the_same_batch_and_leaves_others_alone(tmp_path: Path) -> None:
    stage(tmp_path, STREAM, flights(1, "killed"))
    stage(tmp_path, WriteId("query-1", "r", 1, "nats"), flights(1, "next"))
    stage(tmp_path, WriteId("query-2", "r", 0, "nats"), flights(1, "other"))
    result = commit(str(tmp_path), {}, STREAM, stage(tmp_path, STREAM, flights(1, "again")), app=APP)
    assert (result.committed, result.uncommitted) == (1, 1)
    assert marks(tmp_path) == [("again-0", True), ("killed-0", False)]


def test_batch_that_was_recorded_and_runs_again_is_not_committed_twice(tmp_path: Path) -> None:
    """Killed between the flight log's commit and Spark's own."""
    commit(str(tmp_path), {}, STREAM, stage(tmp_path, STREAM, flights(1, "first")), app=APP)
    result = commit(str(tmp_path), {}, STREAM, stage(tmp_path, STREAM, flights(1, "second")), app=APP)
    assert result.recorded
    assert marks(tmp_path) == [("first-0", True), ("second-0", False)]


@pytest.mark.parametrize("events", [1, 0])
def test_commit_that_meets_itself_because_its_answer_was_lost_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    """An object store's client asks again, and hears that the version is there. A write without dead letters has no
    parts by which a commit is known."""

    def make_and_conflict(*args: Any, **more: Any) -> int:
        version = add_and_remove(*args, **more)
        raise CommitFailedError(f"version {version} exists")

    monkeypatch.setattr(transaction, "add_and_remove", make_and_conflict)
    parts = stage(tmp_path, STREAM, flights(1)) if events else []
    assert not commit(str(tmp_path), {}, STREAM, parts, app=APP, description={"run_id": "run-1"}).recorded
    assert commit(str(tmp_path), {}, STREAM, [], app=APP, description={"run_id": "run-2"}).recorded
    assert marks(tmp_path) == [("id-0", True)] * events


def test_lower_version_than_the_recorded_one_is_not_committed(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(1, "new")), app=("nightly", 8))
    late = WriteId(None, "run-8", None, "nats")
    assert commit(str(tmp_path), {}, late, stage(tmp_path, late, flights(1, "old")), app=("nightly", 7)).recorded
    assert marks(tmp_path) == [("new-0", True), ("old-0", False)]


def test_race_for_one_batch_is_won_once(tmp_path: Path) -> None:
    attempts = [stage(tmp_path, STREAM, flights(1, f"try{i}")) for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda p: commit(str(tmp_path), {}, STREAM, p, app=APP), attempts))
    assert sum(not r.recorded for r in results) == 1
    got = marks(tmp_path)
    assert len(got) == 6
    assert sum(committed for _, committed in got) == 1


def test_parallel_creators_and_committers_lose_nothing(tmp_path: Path) -> None:
    def one(i: int) -> None:
        write_id = WriteId(f"query-{i}", "run", 0, "nats")
        commit(str(tmp_path), {}, write_id, stage(tmp_path, write_id, flights(2, f"q{i}")), app=(f"query-{i}", 0))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert marks(tmp_path) == sorted((f"q{i}-{k}", True) for i in range(8) for k in range(2))


@pytest.mark.parametrize("first", [True, False], ids=["first commit", "later commit"])
@pytest.mark.parametrize("damage", ["gone", "cut", "folder gone"])
def test_part_that_is_not_there_as_it_was_written_is_not_committed(tmp_path: Path, first: bool, damage: str) -> None:
    log = tmp_path / "log"
    if not first:
        earlier = WriteId(None, "earlier", None, "nats")
        commit(str(log), {}, earlier, stage(log, earlier, flights(1, "earlier")))
    whole, broken = *stage(log, STREAM, flights(1, "whole")), *stage(log, STREAM, flights(2, "broken"))
    if damage == "folder gone":  # what a driver sees whose executors have a folder of the same name
        (log / "parts" / "query-1").rename(tmp_path / "of-the-executors")
    elif damage == "gone":
        (log / broken.path).unlink()
    else:
        os.truncate(log / broken.path, broken.size - 1)
    count = "2 of the 2" if damage == "folder gone" else "1 of the 2"
    with pytest.raises(FlightLogError, match=f"flightLog {log}: {count} files that the tasks wrote are not there"):
        commit(str(log), {}, STREAM, [whole, broken], app=APP)
    assert first != (log / "_delta_log").exists()
    abort(str(log), {}, STREAM, [whole, broken])  # as Spark does after a commit that raised
    kept = [] if damage == "folder gone" else [("whole-0", False)]
    if first and not kept:
        assert not (log / "_delta_log").exists()
    else:
        assert marks(log) == [*([] if first else [("earlier-0", True)]), *kept]


FULL_DISK = """
import resource, sys
from tests.support.flight_logs import BATCH, flights, stage
from mama_spark.contracts.errors import Unavailable
from mama_spark.flightlog.commit import commit
for log, is_first in ((sys.argv[1], True), (sys.argv[2], False)):
    earlier, parts = stage(log, BATCH, flights(1, "a")), stage(log, BATCH, flights(2, "b"))
    if not is_first:
        commit(log, {}, BATCH, earlier)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # stands for the full disk
    try:
        commit(log, {}, BATCH, earlier + parts)
    except Unavailable as e:
        error = e
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    print(error)
    commit(log, {}, BATCH, earlier + parts)
"""


def test_commit_on_a_full_disk_says_so_and_can_be_repeated(tmp_path: Path) -> None:
    logs = [tmp_path / "first", tmp_path / "later"]
    done = subprocess.run([sys.executable, "-c", FULL_DISK, *logs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("File too large") == 2
    for log in logs:
        assert f"flightLog {log}: " in done.stdout
        assert marks(log) == [("a-0", True), ("b-0", True), ("b-1", True)]


def test_new_extra_column_is_added_and_missing_one_is_null(tmp_path: Path) -> None:
    plain = WriteId(None, "a", None, "nats")
    commit(str(tmp_path), {}, plain, stage(tmp_path, plain, flights(1, "a")))
    extra = [pa.field("price", pa.float64()), pa.field("seen", pa.timestamp("us"))]
    columns = flights(
        1, "b", extra=pa.record_batch([pa.array([1.5]), pa.array([T0], pa.timestamp("us"))], ["price", "seen"])
    )
    more = WriteId(None, "b", None, "nats")
    commit(str(tmp_path), {}, more, stage(tmp_path, more, columns, extra=extra), extra=extra)
    last = WriteId(None, "c", None, "nats")
    commit(str(tmp_path), {}, last, stage(tmp_path, last, flights(1, "c")))
    query = QueryBuilder().register("log", DeltaTable(tmp_path)).execute("SELECT flight_id, price FROM log")
    got = pa.table(query).to_pylist()
    assert {r["flight_id"]: r["price"] for r in got} == {"a-0": None, "b-0": 1.5, "c-0": None}


def test_extra_column_with_another_type_is_refused(tmp_path: Path) -> None:
    one, two = [pa.field("price", pa.float64())], [pa.field("price", pa.string())]
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(1), extra=one), extra=one)
    with pytest.raises(FlightLogError, match="price"):
        stage(tmp_path, BATCH, flights(1), extra=two)
    with pytest.raises(FlightLogError, match="price"):
        commit(str(tmp_path), {}, WriteId(None, "x", None, "nats"), [], extra=two, app=("x", 1))


def test_extra_column_whose_name_differs_by_case_is_refused_before_the_first_publish(tmp_path: Path) -> None:
    one, two = [pa.field("Region", pa.string())], [pa.field("region", pa.string())]
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(1), extra=one), extra=one)
    with pytest.raises(FlightLogError, match="column 'region' differs only by case from column 'Region'"):
        stage(tmp_path, BATCH, flights(1), extra=two)


def test_map_with_ntz_is_refused_before_the_first_publish(tmp_path: Path) -> None:
    """delta-rs would make of it a table that nobody opens."""
    at = pa.field("at", pa.timestamp("us"))
    extra = [pa.field("days", pa.list_(pa.struct([pa.field("seen", pa.map_(pa.string(), pa.struct([at])))])))]
    with pytest.raises(SchemaError, match="column 'days': it has timestamp_ntz in a map; cast it to timestamp"):
        stage(tmp_path, BATCH, flights(1), extra=extra)


def test_commit_refuses_another_table(tmp_path: Path) -> None:
    parts = stage(tmp_path, BATCH, flights(1))
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    with pytest.raises(FlightLogError, match="another table"):
        commit(str(tmp_path), {}, BATCH, parts)


def test_add_actions_carry_statistics_that_bound_the_event_time(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(3, at=T0 + 123_456)))
    (log,) = (tmp_path / "_delta_log").glob("*1.json")
    (add,) = [a["add"] for line in log.read_text().splitlines() if "add" in (a := json.loads(line))]
    assert json.loads(add["stats"]) == {
        "numRecords": 3,
        "minValues": {"event_time": "2026-09-21T14:13:20.123Z"},
        "maxValues": {"event_time": "2026-09-21T14:13:20.126Z"},
        "nullCount": {"event_time": 0},
    }
    assert add["partitionValues"] == {"event_date": "2026-09-21", "committed": "true"}


# --- sweep -----------------------------------------------------------------------------------------------------


def age(path: Path, by: timedelta) -> None:
    then = time.time() - by.total_seconds()
    os.utime(path, (then, then))


def test_orphans_that_are_old_enough_and_not_too_old_are_adopted_once(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(1, "live")))
    extra = [pa.field("price", pa.float64())]
    (old,) = stage(tmp_path, WriteId("query-9", "r", 4, "nats"), flights(2, "old"), extra=extra)
    stage(tmp_path, WriteId("query-9", "r", 5, "nats"), flights(2, "young"))
    (ancient,) = stage(tmp_path, WriteId(None, "ancient", None, "nats"), flights(1, "ancient"))
    age(tmp_path / old.path, timedelta(days=2))
    age(tmp_path / ancient.path, timedelta(days=8))  # the log may list it as removed no longer
    dry = adopt_orphans(str(tmp_path), {}, dry_run=True)
    assert ([p.path for p in dry.parts], dry.version, dry.rows) == ([old.path], None, 2)
    assert marks(tmp_path) == [("live-0", True)]
    assert [p.path for p in adopt_orphans(str(tmp_path), {}).parts] == [old.path]
    assert adopt_orphans(str(tmp_path), {}).parts == []
    assert marks(tmp_path) == [("live-0", True), ("old-0", False), ("old-1", False)]


def test_adopting_creates_the_table_of_a_job_that_never_committed_without_broken_files(tmp_path: Path) -> None:
    (part,) = stage(tmp_path, BATCH, flights(2))
    (tmp_path / part.path).with_name("broken.parquet").write_bytes(b"PAR1 no more")
    assert adopt_orphans(str(tmp_path), {}, timedelta(0)).rows == 2
    assert marks(tmp_path) == [("id-0", False), ("id-1", False)]


def test_adopting_in_a_folder_that_is_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FlightLogError, match="neither"):
        adopt_orphans(str(tmp_path), {})


FEATURES = (
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
    "invariants", "timestampNtz", "v2Checkpoint", "allowColumnDefaults", "clustering", "domainMetadata",
    "icebergCompatV2", "identityColumns", "inCommitTimestamp", "rowTracking", "typeWidening", "vacuumProtocolCheck",
    "of a later Delta",
)  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_of_delta_is_refused_by_its_name_where_delta_rs_refuses_the_commit(
    tmp_path: Path, feature: str
) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(1)))
    parts = stage(tmp_path, STREAM, flights(1, "later"))
    set_features(tmp_path, feature)
    try:
        add_and_remove(DeltaTable(tmp_path), [add_action(parts[0], True)])
        refused = False
    except CommitFailedError:
        refused = True
    store = TableStore(str(tmp_path), {})
    if not refused:
        assert existing_table(store, table_schema(), "flightLog", frozenset()) is not None
        return
    with pytest.raises(FlightLogError, match=rf"^flightLog: .*has features of Delta .*: {feature}; name another path"):
        existing_table(store, table_schema(), "flightLog", frozenset())
    for change in (commit, abort):
        with pytest.raises(FlightLogError, match=f": {feature}; "):
            change(str(tmp_path), {}, STREAM, parts)
    with pytest.raises(FlightLogError, match=feature):
        maintain(str(tmp_path), {}, keep=timedelta(days=1))


def test_a_column_whose_name_in_files_differs_is_refused(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(1)))
    set_features(tmp_path, "columnMapping", renamed="topic", **{"columnMapping.mode": "name"})
    with pytest.raises(FlightLogError, match=r"columnMapping \(see column topic\)"):
        commit(str(tmp_path), {}, STREAM, stage_only(tmp_path))


def stage_only(table: Path) -> list[Part]:
    """Parts of a task that began before the table was changed."""
    staging = Staging(str(table), {}, STREAM, 0, 0)
    staging.add_flights(flights(1, "later"))
    return staging.close()


def test_what_no_other_commit_has_caused_is_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = stage(tmp_path, BATCH, flights(1))
    commit(str(tmp_path), {}, STREAM, stage(tmp_path, STREAM, flights(1, "first")))
    tries = []

    def refuse(*_: object, **__: object) -> int:
        tries.append(1)
        raise CommitFailedError("the table says no")

    monkeypatch.setattr(transaction, "add_and_remove", refuse)
    with pytest.raises(FlightLogError, match="the table takes no commit: the table says no"):
        commit(str(tmp_path), {}, BATCH, parts)
    assert len(tries) == 1


@pytest.mark.parametrize("name", ["a b", "ä", "a#b?c", "a%", "a%b", "a%20b", "%2e%2e", "%E4", "%25", "a\\b", "a\tb"])
@pytest.mark.parametrize("as_url", [False, True])
def test_a_folder_of_any_name_holds_the_table_or_is_refused_before(tmp_path: Path, name: str, as_url: bool) -> None:
    folder = tmp_path / name
    uri = folder.as_uri() if as_url else str(folder)
    if name in ("a b", "ä", "a#b?c", "a%", "a%b"):
        mark_folder(uri, "flightLog")
        for number in range(2):  # the second reads what the first has written
            write_id = WriteId(None, f"run-{number}", None, "nats")
            commit(uri, {}, write_id, stage(uri, write_id, flights(1, str(number))))
        assert len(rows(folder)) == 2
        assert [path.name for path in tmp_path.iterdir()] == [name]
        return
    with pytest.raises(FlightLogError, match=r"flightLog: the path .* name a path without it"):
        mark_folder(uri, "flightLog")
    with pytest.raises(FlightLogError, match="name a path without it"):
        TableStore(uri, {})
    assert list(tmp_path.iterdir()) == []
