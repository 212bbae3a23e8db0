"""A process that commits to a table again and again reads it once, and notices whatever others do with it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.maintenance import compact_after_commit
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.storage import KEPT_TABLES, TableStore
from mama_spark.flightlog.transaction import CommitResult

from tests.support.flight_logs import flights, rows, stage


class Reads:
    """Counts how often tables were read whole."""

    def __init__(self) -> None:
        self.count = 0

    def since(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted, read = Reads(), TableStore.table

    def table(store: TableStore) -> DeltaTable | None:
        counted.count += 1
        return read(store)

    monkeypatch.setattr(TableStore, "table", table)
    return counted


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process."""
    monkeypatch.setattr(KEPT_TABLES, "_tables", {})


def batch(table: Path, number: int, query: str = "query-1") -> CommitResult:
    """One micro-batch of one row."""
    write_id = WriteId(query, "run-1", number, "nats")
    parts = stage(table, write_id, flights(1, f"{query}-{number}"))
    return commit(str(table), {}, write_id, parts, app=(query, number))


def ids(table: Path) -> list[str]:
    return sorted(r["flight_id"] for r in rows(table) if r["committed"])


def commit_until_kept(table: Path, reads: Reads) -> None:
    for number in range(2):
        batch(table, number)
    reads.since()


def test_commits_after_the_second_do_not_read_the_table(tmp_path: Path, reads: Reads) -> None:
    commit_until_kept(tmp_path, reads)
    for number in range(2, 19):
        assert batch(tmp_path, number).version == number + 1
    assert reads.since() == 0
    for number in range(19, 21):  # the checkpoint is read, in the background
        assert batch(tmp_path, number).version == number + 1
    assert reads.since() == 1
    assert ids(tmp_path) == sorted(f"query-1-{number}-0" for number in range(21))


def checkpoint(table: Path) -> int | None:
    """Version of the last checkpoint, once none is being written."""
    for kept in KEPT_TABLES._tables.values():
        if kept is not None:
            kept.refresh.join()
    last = table / "_delta_log" / "_last_checkpoint"
    return json.loads(last.read_text())["version"] if last.exists() else None


def test_checkpoint_is_written_behind_the_commit_that_it_is_due_after(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which thread is what tells: a commit must not wait for it."""
    writers, write = [], DeltaTable.create_checkpoint

    def create_checkpoint(table: DeltaTable) -> None:
        writers.append(threading.current_thread())
        write(table)

    monkeypatch.setattr(DeltaTable, "create_checkpoint", create_checkpoint)
    for number in range(18):
        batch(tmp_path, number)
    assert checkpoint(tmp_path) is None
    assert batch(tmp_path, 18).version == 19
    assert checkpoint(tmp_path) == 19
    assert len(writers) == 1
    assert writers[0] is not threading.current_thread()
    assert batch(tmp_path, 19).version == 20
    assert DeltaTable(tmp_path).version() == 20
    assert ids(tmp_path) == sorted(f"query-1-{number}-0" for number in range(20))


def test_checkpoint_that_cannot_be_written_is_a_warning_and_the_next_commit_goes_on(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def create_checkpoint(table: DeltaTable) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", create_checkpoint)
    for number in range(20):
        assert batch(tmp_path, number).version == number + 1
    assert checkpoint(tmp_path) is None
    assert "no space left on device" in caplog.text
    assert ids(tmp_path) == sorted(f"query-1-{number}-0" for number in range(20))


def test_first_commit_of_a_process_writes_the_checkpoint_itself(tmp_path: Path, reads: Reads) -> None:
    """It may be the last one of this process."""
    for number in range(19):
        batch(tmp_path, number)
        KEPT_TABLES._tables.clear()
    assert checkpoint(tmp_path) == 19


def test_commit_of_others_is_noticed(tmp_path: Path, reads: Reads) -> None:
    commit_until_kept(tmp_path, reads)
    other = WriteId("query-2", "run-1", 0, "nats")
    parts = stage(tmp_path, other, flights(1, "other"))
    in_another_process(parts, tmp_path, other)
    reads.since()
    assert batch(tmp_path, 2).version == 4
    assert reads.since() == 1
    assert ids(tmp_path) == ["other-0", "query-1-0-0", "query-1-1-0", "query-1-2-0"]


def in_another_process(parts: list[Part], table: Path, write_id: WriteId) -> None:
    """Another process has a memory of its own."""
    mine, KEPT_TABLES._tables = KEPT_TABLES._tables, {}
    commit(str(table), {}, write_id, parts, app=(write_id.query_id or "", write_id.batch_id or 0))
    KEPT_TABLES._tables = mine


def test_batch_that_another_driver_has_committed_is_not_committed_again(tmp_path: Path, reads: Reads) -> None:
    commit_until_kept(tmp_path, reads)
    same = WriteId("query-1", "run-2", 2, "nats")
    in_another_process(stage(tmp_path, same, flights(1, "first")), tmp_path, same)
    assert batch(tmp_path, 2).recorded
    assert ids(tmp_path) == ["first-0", "query-1-0-0", "query-1-1-0"]


def test_commit_that_another_one_overtakes_reads_the_table_again(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the check of the kept table, and before our commit."""
    commit_until_kept(tmp_path, reads)
    other, take = WriteId("query-2", "run-1", 0, "nats"), KEPT_TABLES.take
    parts = stage(tmp_path, other, flights(1, "other"))

    def take_and_lose(store: TableStore) -> DeltaTable | None:
        table = take(store)
        if table is not None:
            monkeypatch.setattr(KEPT_TABLES, "take", take)
            in_another_process(parts, tmp_path, other)
        return table

    monkeypatch.setattr(KEPT_TABLES, "take", take_and_lose)
    assert batch(tmp_path, 2).version == 4
    assert ids(tmp_path) == ["other-0", "query-1-0-0", "query-1-1-0", "query-1-2-0"]


@pytest.mark.parametrize("commits", [0, 2])
def test_table_that_was_removed_or_made_anew_is_read_again(tmp_path: Path, reads: Reads, commits: int) -> None:
    """Also where the new one has as many versions as the old one."""
    commit_until_kept(tmp_path / "log", reads)
    shutil.rmtree(tmp_path / "log")
    for number in range(commits):
        other = WriteId("query-1", "run-2", number, "nats")
        in_another_process(stage(tmp_path / "log", other, flights(1, f"new-{number}")), tmp_path / "log", other)
    assert batch(tmp_path / "log", 2).version == commits + 1
    assert ids(tmp_path / "log") == sorted([*(f"new-{n}-0" for n in range(commits)), "query-1-2-0"])


def test_table_that_was_compacted_is_read_again(tmp_path: Path, reads: Reads) -> None:
    commit_until_kept(tmp_path, reads)
    compact_after_commit(str(tmp_path), {})
    batch(tmp_path, 2)
    assert ids(tmp_path) == ["query-1-0-0", "query-1-1-0", "query-1-2-0"]


def test_table_is_not_kept_over_a_fork(tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_until_kept(tmp_path, reads)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert KEPT_TABLES.take(TableStore(str(tmp_path), {})) is None


def test_few_tables_are_kept(tmp_path: Path, reads: Reads) -> None:
    for name in "abcdef":
        commit_until_kept(tmp_path / name, reads)
    assert len(KEPT_TABLES._tables) == KEPT_TABLES.MOST
