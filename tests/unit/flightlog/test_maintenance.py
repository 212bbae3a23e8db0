"""Maintenance beside writers: nothing is lost, and neither commits nor reads get slower with the number of commits."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from mama_spark.cli.main import main
from mama_spark.contracts.errors import ConfigError, FlightLogError
from mama_spark.flightlog import maintenance, transaction
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.maintenance import adopt_orphans, compact, compact_after_commit, maintain
from mama_spark.flightlog.parts import GROUP_BYTES, OpenPart, Part
from mama_spark.flightlog.storage import TableStore

from jobs import maintain as job
from tests.support.flight_logs import T0, commit_dead_letters, flights, rows, stage, stage_letters
from tests.support.tables import each

DAY = 86_400_000_000


def micro_batch(log: Path, number: int, n: int = 2, query: str = "query-1", at: int = T0) -> None:
    write_id = WriteId(query, "run", number, "nats")
    parts = stage(log, write_id, flights(n, f"{query}-{number}", at=at))
    assert not commit(str(log), {}, write_id, parts, app=(query, number)).recorded


def ids(log: Path, committed: bool = True) -> list[str]:
    return sorted(row["flight_id"] for row in rows(log) if row["committed"] is committed)


def expected(batches: range, n: int = 2, query: str = "query-1") -> list[str]:
    return sorted(f"{query}-{number}-{i}" for number in batches for i in range(n))


def sizes(log: Path) -> list[int]:
    found: list[int] = pa.table(DeltaTable(log).get_add_actions())["size_bytes"].to_pylist()
    return found


def test_small_files_become_one_with_the_same_rows_and_no_more_bytes(tmp_path: Path) -> None:
    for number in range(5):
        micro_batch(tmp_path, number, 500)
    before, bytes_before, version = rows(tmp_path), sum(sizes(tmp_path)), DeltaTable(tmp_path).version()
    done = maintain(str(tmp_path), {})
    assert (done.compacted, done.written, done.files, done.vacuumed) == (5, 1, (5, 1), 0)
    assert rows(tmp_path) == before
    assert sum(sizes(tmp_path)) <= bytes_before
    assert DeltaTable(tmp_path, version=version).to_pyarrow_table().num_rows == 2_500  # its files are still there
    (low,) = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True))["min.event_time"].to_pylist()
    assert low.timestamp() * 1_000_000 == T0  # readers skip files by it
    again = maintain(str(tmp_path), {})
    assert (again.compacted, again.files) == (0, (1, 1))


def test_dry_run_says_what_would_be_done_and_changes_nothing(tmp_path: Path) -> None:
    for number in range(3):
        micro_batch(tmp_path, number)
    before = sorted(tmp_path.rglob("*"))
    expired = 3 * (time.time() * 1e6 - T0 > 2 * DAY)
    done = maintain(str(tmp_path), {}, keep=timedelta(days=1), dry_run=True)
    assert (done.expired, done.compacted, done.files) == (expired, 3, (3, 3))
    assert sorted(tmp_path.rglob("*")) == before


def test_only_days_before_those_to_keep_are_dropped(tmp_path: Path) -> None:
    today = int(time.time() * 1_000_000)
    for number, age in enumerate((0, 5, 40)):
        micro_batch(tmp_path, number, at=today - age * DAY)
    assert maintain(str(tmp_path), {}, keep=timedelta(days=30)).expired == 1
    assert ids(tmp_path) == expected(range(2))
    assert maintain(str(tmp_path), {}, keep=timedelta(days=30)).expired == 0


def test_storage_loses_only_files_that_left_the_table_longer_ago_than_it_keeps_them(tmp_path: Path) -> None:
    micro_batch(tmp_path, 0)
    folder = tmp_path / "parts" / "query-2" / "0"
    folder.mkdir(parents=True)
    for name, age in (("running", 0), ("killed", 8)):
        (folder / f"{name}.parquet").write_bytes(b"not whole")
        os.utime(folder / f"{name}.parquet", (time.time() - age * 86_400,) * 2)
    (marker,) = [tmp_path / "_mama_spark-1"]
    marker.touch()
    os.utime(marker, (1, 1))
    assert maintain(str(tmp_path), {}).vacuumed == 1
    assert [path.name for path in folder.iterdir()] == ["running.parquet"]
    assert marker.exists()


def test_orphans_are_added_before_vacuum_could_remove_them(tmp_path: Path) -> None:
    micro_batch(tmp_path, 0)
    (part,) = stage(tmp_path, WriteId("killed", "run", 0, "nats"), flights(1, "orphan"))
    os.utime(tmp_path / part.path, (time.time() - 2 * 86_400,) * 2)
    assert maintain(str(tmp_path), {}).adopted == 1
    assert ids(tmp_path, committed=False) == ["orphan-0"]


def test_rows_that_a_commit_may_still_make_committed_are_not_merged(tmp_path: Path) -> None:
    """A part that was added as an orphan while its batch ran is added again by the commit, in its own file."""
    micro_batch(tmp_path, 0)
    slow = WriteId("slow", "run", 0, "nats")
    parts = stage(tmp_path, slow, flights(1, "slow-a")) + stage(tmp_path, slow, flights(1, "slow-b"))
    assert maintain(str(tmp_path), {}, older_than=timedelta(0)).adopted == 2
    commit(str(tmp_path), {}, slow, parts, app=("slow", 0))
    assert ids(tmp_path) == sorted([*expected(range(1)), "slow-a-0", "slow-b-0"])
    assert ids(tmp_path, committed=False) == []


def test_rows_of_failed_attempts_are_merged_when_no_commit_can_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_id = WriteId("query-1", "run", number, "nats")
        abort(str(tmp_path), {}, write_id, stage(tmp_path, write_id, flights(1, f"failed-{number}")))
    assert maintain(str(tmp_path), {}).compacted == 0
    monkeypatch.setattr(maintenance, "oldest_addable", lambda table: datetime.now(UTC))
    assert maintain(str(tmp_path), {}).compacted == 3
    assert ids(tmp_path, committed=False) == ["failed-0-0", "failed-1-0", "failed-2-0"]


@pytest.mark.parametrize("app", [True, False], ids=["micro-batch", "batch"])
def test_write_that_is_repeated_after_its_parts_were_merged_is_not_added_twice(tmp_path: Path, app: bool) -> None:
    write_id = WriteId("query-1", "run", 0, "nats") if app else WriteId(None, "run", None, "nats")
    recorded = ("query-1", 0) if app else None
    parts = stage(tmp_path, write_id, flights(1, "a")) + stage(tmp_path, write_id, flights(1, "b"))
    commit(str(tmp_path), {}, write_id, parts, app=recorded)
    maintain(str(tmp_path), {})
    commit(str(tmp_path), {}, write_id, parts, app=recorded)
    abort(str(tmp_path), {}, write_id, parts, app=recorded)
    assert (ids(tmp_path), ids(tmp_path, committed=False)) == (["a-0", "b-0"], [])


def test_writers_and_two_maintainers_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    queries, batches = ("query-1", "query-2"), range(6)
    for query in queries:
        micro_batch(tmp_path, 0, query=query)
    writing = True

    def write(query: str) -> None:
        for number in batches[1:]:
            micro_batch(tmp_path, number, query=query)

    def look_after() -> None:
        while writing:
            maintain(str(tmp_path), {})

    with ThreadPoolExecutor(4) as pool:
        maintainers = [pool.submit(look_after) for _ in range(2)]
        try:
            list(pool.map(write, queries))
        finally:
            writing = False
        for each in maintainers:
            each.result()
    maintain(str(tmp_path), {})
    assert ids(tmp_path) == sorted(expected(batches) + expected(batches, query="query-2"))
    assert ids(tmp_path, committed=False) == []


def test_files_that_another_maintainer_has_merged_meanwhile_are_not_merged_again(tmp_path: Path) -> None:
    """Both have read the table before; optimize.compact of delta-rs doubles the rows then."""
    for number in range(3):
        micro_batch(tmp_path, number)
    store, table = TableStore(str(tmp_path), {}), DeltaTable(tmp_path)
    (group,) = maintenance._groups(table, 1 << 20, late=False)
    assert maintenance._merge(store, table, group)
    micro_batch(tmp_path, 3)
    assert not maintenance._merge(store, table, group)
    assert ids(tmp_path) == expected(range(4))
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 1  # the file that was not needed is removed


def test_rows_of_before_a_column_was_added_get_nulls(tmp_path: Path) -> None:
    micro_batch(tmp_path, 0, 1)
    extra = [pa.field("region", pa.string())]
    write_id = WriteId("query-1", "run", 1, "nats")
    columns = flights(1, "query-1-1", extra=pa.record_batch([pa.array(["r1"])], ["region"]))
    parts = stage(tmp_path, write_id, columns, extra=extra)
    commit(str(tmp_path), {}, write_id, parts, app=("query-1", 1), extra=extra)
    before = rows(tmp_path)
    assert maintain(str(tmp_path), {}).written == 1
    assert rows(tmp_path) == before
    assert sorted(str(row["region"]) for row in before) == ["None", "r1"]


def test_few_wide_rows_are_merged_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload, batches = pa.array([bytes(2 << 20)] * 20, pa.binary()), list[int]()
    for number in range(2):
        write_id = WriteId("query-1", "run", number, "nats")
        parts = stage(tmp_path, write_id, flights(20, payload=payload))
        commit(str(tmp_path), {}, write_id, parts, app=("query-1", number))
    add = OpenPart.add

    def noted(part: OpenPart, batch: pa.RecordBatch) -> None:
        batches.append(batch.nbytes)
        add(part, batch)

    monkeypatch.setattr(OpenPart, "add", noted)
    assert compact(TableStore(str(tmp_path), {}), 1 << 30) == (2, 1)
    assert sum(batches) > 40 * len(payload[0].as_py())
    assert max(batches) <= 1.1 * GROUP_BYTES


def test_compaction_every_so_many_commits_bounds_what_a_commit_and_a_read_load(tmp_path: Path) -> None:
    """Files of the table, and commits that are read after its last checkpoint."""
    files, commits = [], []
    for number in range(40):
        micro_batch(tmp_path, number, 1)
        if (number + 1) % 10 == 0:
            compact_after_commit(str(tmp_path), {})
        table = DeltaTable(tmp_path)
        files.append(len(table.file_uris()))
        last = tmp_path / "_delta_log" / "_last_checkpoint"
        checkpoint = json.loads(last.read_text())["version"] if last.exists() else 0
        commits.append(table.version() - checkpoint)
    assert max(files[20:]) == max(files[:20]) == 10
    assert max(commits) <= 21
    assert ids(tmp_path) == expected(range(40), 1)


def test_compaction_that_fails_is_logged_and_fails_no_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        micro_batch(tmp_path, number)
    (tmp_path / DeltaTable(tmp_path).file_uris()[0]).unlink()
    compact_after_commit(str(tmp_path), {})
    assert "the batch is committed, and its flight log was not compacted" in caplog.text


def test_files_of_the_target_size_are_left_as_they_are(tmp_path: Path) -> None:
    """So that what compaction rewrites does not grow with the log."""
    for number in range(3):
        micro_batch(tmp_path, number)
    assert compact(TableStore(str(tmp_path), {}), min(sizes(tmp_path))) == (0, 0)


def test_sweep_opens_only_files_that_the_table_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        micro_batch(tmp_path, number)
    stage(tmp_path, WriteId("killed", "run", 0, "nats"), flights(1, "orphan"))
    opened: list[Any] = []
    read = pq.read_schema

    def count(file: Any) -> pa.Schema:
        opened.append(file)
        return read(file)

    monkeypatch.setattr(pq, "read_schema", count)
    assert adopt_orphans(str(tmp_path), {}, timedelta(0)).rows == 1
    assert len(opened) == 1
    assert adopt_orphans(str(tmp_path), {}, timedelta(0)).rows == 0
    assert len(opened) == 1


def test_dead_letter_table_is_maintained_too(tmp_path: Path) -> None:
    for number in range(3):
        write_id = WriteId("query-1", "run", number, "nats")
        letters = stage_letters(tmp_path, write_id, 2, f"dead-{number}")
        commit_dead_letters(str(tmp_path), {}, write_id, letters, app=("query-1", number))
    before = rows(tmp_path)
    assert maintain(str(tmp_path), {}).written == 1
    assert rows(tmp_path) == before


def test_other_tables_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlightLogError, match="no flight log there"):
        maintain(str(tmp_path / "nothing"), {})
    write_deltalake(tmp_path / "other", pa.table({"x": [1]}))
    with pytest.raises(FlightLogError, match="neither a flight log nor a dead-letter table"):
        maintain(str(tmp_path / "other"), {})
    assert DeltaTable(tmp_path / "other").version() == 0


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        micro_batch(tmp_path, number)
    assert main(["flights", "maintain", str(tmp_path), "--dry-run"]) == 0
    assert "3 files would be merged" in capsys.readouterr().out
    assert main(["flights", "maintain", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [3, 1]
    assert main(["flights", str(tmp_path)]) == 0
    assert "not added" not in capsys.readouterr().out
    stage(tmp_path, WriteId("killed", "run", 0, "nats"), flights(1, "orphan"))
    assert main(["flights", str(tmp_path)]) == 0
    assert "not added    parts of writes that run or were interrupted: 1;" in capsys.readouterr().out
    assert main(["flights", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts_not_added"] == 1
    assert main(["flights", str(tmp_path), "--keep", "1d"]) == 2
    assert "--keep is for mama flights maintain" in capsys.readouterr().err


def test_job_maintains_all_tables_and_tells_of_those_that_it_could_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        micro_batch(tmp_path / "log", number)
    conf = tmp_path / "maintain.toml"
    conf.write_text(f'[maintain]\ntables = ["{tmp_path}/none", "{tmp_path}/log"]\nkeep = "20000d"\n')
    monkeypatch.setattr("sys.argv", ["maintain.py", "--conf-file", str(conf)])
    with pytest.raises(SystemExit, match="1"):
        job.main()
    said = capsys.readouterr()
    assert "no flight log there" in said.err
    assert "3 files were merged into 1" in said.out


@each(
    ("conf", "told"),
    [({}, "tables must be a list"), ({"table": "a"}, "no setting 'table'"), ({"tables": ["a"], "keep": "x"}, "keep")],
)
def test_job_refuses_a_wrong_setting(conf: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        job.run(conf, {})


def copies(log: Path, write_id: WriteId, number: int) -> list[Part]:
    """The parts of as many tasks: one part under many names."""
    (part,) = stage(log, write_id, flights(1, write_id.prefix))
    folder = Path(part.path).parent
    for i in range(1, number):
        os.link(log / part.path, log / folder / f"{i:05d}.parquet")
    return [part, *(replace(part, path=f"{folder.as_posix()}/{i:05d}.parquet") for i in range(1, number))]


def test_the_parts_of_2000_tasks_are_one_commit(tmp_path: Path) -> None:
    write_id = WriteId(None, "run", None, "nats")
    result = commit(str(tmp_path), {}, write_id, copies(tmp_path, write_id, 2_000))
    assert (result.committed, result.version) == (2_000, 1)
    assert DeltaTable(tmp_path).version() == 1
    assert len(DeltaTable(tmp_path).file_uris()) == 2_000


def test_expired_entries_of_the_log_are_looked_for_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "CLEAN_EVERY", 8)
    for number in range(3):
        micro_batch(tmp_path, number)
    DeltaTable(tmp_path).create_checkpoint()
    log = tmp_path / "_delta_log"
    for entry in log.iterdir():
        os.utime(entry, (T0 / 1e6 - 400 * 86_400,) * 2)
    oldest = log / f"{0:020d}.json"
    for number in range(3, 7):
        micro_batch(tmp_path, number)
        assert oldest.exists()
    micro_batch(tmp_path, 7)  # makes version 8
    assert not oldest.exists()
    assert ids(tmp_path) == expected(range(8))
