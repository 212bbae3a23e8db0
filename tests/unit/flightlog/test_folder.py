"""The folder of a table: made, marked, shared, mounted, damaged."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from mama_spark.cli import main as cli
from mama_spark.contracts.errors import FlightLogError, MamaError, Unavailable
from mama_spark.flightlog import folder
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.folder import WriteId, mark_folder, require_marker
from mama_spark.flightlog.reading import unpublished
from mama_spark.flightlog.schema import table_schema
from mama_spark.flightlog.staging import DeadLetterStaging, Staging
from mama_spark.flightlog.storage import storage_errors
from mama_spark.flightlog.table_check import file_system

from tests.support.flight_logs import BATCH, commit_dead_letters, flights, rows, stage

# --- the folder of a table: free of files of others, and the same one for the driver and its tasks --------------------


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
    with pytest.raises(FlightLogError, match=f"flightLog: {tmp_path}/file.*; name a folder that this user may make"):
        mark_folder(f"{tmp_path}/file{below}", "flightLog")


def test_a_folder_below_what_takes_no_folders_says_what_to_do() -> None:
    with pytest.raises(FlightLogError, match=r"/proc/log cannot be made: No such file.*; name a folder that this user"):
        mark_folder("/proc/log", "flightLog")


# --- on which file system a folder is ---------------------------------------------------------------------------------

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:20 / /mnt rw,nosuid shared:1 - nfs4 files:/export rw,vers=4.2
24 23 0:21 / /mnt/my\040disk rw shared:2 master:1 - xfs /dev/vdb rw
25 22 0:22 / /data rw - ext4 /dev/vdc rw
26 22 0:23 / /data rw - fuse.s3fs s3fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/log", "ext4"),
        ("/mnt", "nfs4"),
        ("/mnt/log/deep", "nfs4"),
        ("/mnt2/log", "ext4"),
        ("/mnt/my disk/log", "xfs"),
        ("/data/log", "fuse.s3fs"),  # the later mount hides the earlier one
    ],
)
def test_longest_mount_point_that_holds_the_path_counts(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert file_system(path, str(tmp_path / "mounts")) == kind


def test_where_nobody_tells_nothing_is_known(tmp_path: Path) -> None:
    assert file_system("/log", str(tmp_path / "none")) is None


# --- whether an error of a file system may pass is decided in one place, for folders and for tables -------------------

ERRORS: list[tuple[int, type[MamaError]]] = [
    *((passing, Unavailable) for passing in (errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ETIMEDOUT)),
    *((lasting, FlightLogError) for lasting in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)),
]


@pytest.mark.parametrize(("number", "expected"), ERRORS, ids=[errno.errorcode[number] for number, _ in ERRORS])
def test_folders_and_tables_agree(monkeypatch: pytest.MonkeyPatch, number: int, expected: type[MamaError]) -> None:
    error = OSError(number, os.strerror(number))

    def refuse(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(expected):
        folder.make_folder("/somewhere")
    with pytest.raises(expected), storage_errors("reading", {}):
        raise error


# --- what ``mama flights`` says of a flight log that is damaged: one line, and no trace -------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def fill(file: Path) -> None:
    file.write_bytes(b"{x" * (file.stat().st_size // 2))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    schema = table_schema()
    values = {"kind": "flight", "event": "acked", "topic": "t", "committed": True, "latency_us": 5}
    rows = pa.Table.from_pylist([{name: values.get(name) for name in schema.names}], schema)
    write_deltalake(str(tmp_path / "log"), rows, partition_by=["committed"])
    return tmp_path / "log"


@pytest.mark.parametrize("damage", [cut, fill, Path.unlink])
@pytest.mark.parametrize("file", ["**/*.parquet", "_delta_log/*.json"])
def test_a_damaged_log_is_an_error_of_one_line(
    log: Path, file: str, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(next(log.glob(file)))
    assert cli.main(["flights", str(log)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("mama: ")
    assert "damaged" in said or "no flight log there" in said
    assert "<unknown>" not in said


def test_a_file_is_no_flight_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("x")
    for command in (["flights"], ["flights", "maintain"], ["report"]):
        assert cli.main([*command, str(tmp_path / "log")]) == 2
        assert f"{tmp_path / 'log'} is a file, not the folder of a table" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [cut, fill, Path.unlink])
def test_a_damaged_file_ends_maintenance_and_republication_with_one_line(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        write_id = WriteId("query", "run", number, "nats")
        commit(str(tmp_path), {}, write_id, stage(tmp_path, write_id, flights(2, failed=1)), app=("query", number))
    damage(next(tmp_path.glob("parts/**/*.parquet")))
    assert cli.main(["flights", "maintain", str(tmp_path)]) == 2
    assert re.fullmatch(r"mama: .*a file of the table is damaged or missing: .*; restore it\n", capsys.readouterr().err)
    with pytest.raises(FlightLogError, match="a file of the table is damaged or missing"):
        unpublished(str(tmp_path), {})
