"""The folder of a table: free of files of others, and the same one for the driver and its tasks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable
from mama_spark.errors import FlightLogError
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.dead_letter_table import DeadLetterStaging, commit_dead_letters
from mama_spark.flightlog.folder import mark_folder, require_marker
from mama_spark.flightlog.staging import Staging

from tests.support.flight_logs import BATCH, flights, rows, stage


def test_folder_is_made_and_marked_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "deep" / "log")
    marker = mark_folder(uri, "flightLog")
    assert marker is not None
    assert os.listdir(uri) == [marker]
    assert mark_folder(f"file://{uri}", "flightLog") == marker
    require_marker(uri, marker, "flightLog")


def test_marker_is_seen_by_no_reader_and_outlives_vacuum(tmp_path: Path) -> None:
    marker = mark_folder(str(tmp_path), "flightLog")
    assert marker is not None
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(2)))
    DeltaTable(tmp_path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert (tmp_path / marker).exists()
    assert len(rows(tmp_path)) == 2
    assert mark_folder(str(tmp_path), "flightLog") == marker


def test_object_store_needs_no_marker() -> None:
    assert mark_folder("s3://bucket/log", "flightLog") is None
    require_marker("s3://bucket/log", None, "flightLog")


@pytest.mark.parametrize("there", [False, True], ids=["no folder", "another folder"])
def test_task_that_does_not_see_the_folder_of_the_driver_writes_nothing(tmp_path: Path, there: bool) -> None:
    log = tmp_path / "log"
    if there:
        log.mkdir()
    with pytest.raises(FlightLogError, match=rf"flightLog {log}: the executor on .* does not see .* object store"):
        Staging(str(log), {}, BATCH, 0, 0).check("_mama_spark-of-the-driver")
    with pytest.raises(FlightLogError, match=f"deadLetterTable {log}"):
        DeadLetterStaging(str(log), {}, BATCH, 0, 0).check("_mama_spark-of-the-driver")
    assert list(tmp_path.rglob("*")) == ([log] if there else [])


def test_folder_with_files_of_others_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("1")
    (tmp_path / "2026").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refused = pytest.raises(
        FlightLogError, match=r"no Delta table, and its folder holds other files \(2026, sales.csv\)"
    )
    with refused:
        mark_folder(str(tmp_path), "flightLog")
    with refused:
        Staging(str(tmp_path), {}, BATCH, 0, 0).check()
    with refused:
        DeadLetterStaging(str(tmp_path), {}, BATCH, 0, 0).check()
    with refused:
        commit(str(tmp_path), {}, BATCH, [])
    with refused:
        commit_dead_letters(str(tmp_path), {}, BATCH, [])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("names", [["lost+found", ".snapshot"], ["_delta_log"], ["parts"]], ids=str)
def test_folder_that_holds_only_what_may_be_there_is_taken(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    mark_folder(str(tmp_path), "flightLog")
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(1)))
    assert len(rows(tmp_path)) == 1


@pytest.mark.parametrize("below", ["", "/log"])
def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("1")
    with pytest.raises(FlightLogError, match=f"flightLog: {tmp_path}/file"):
        mark_folder(f"{tmp_path}/file{below}", "flightLog")


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FlightLogError, match=r"log cannot be made: Not a directory; name a folder that this user"):
        mark_folder(str(tmp_path / "file" / "log"), "flightLog")
