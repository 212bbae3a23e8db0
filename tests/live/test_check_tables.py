"""What ``mama check`` says of the places of the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mama_spark.cli.main import main
from mama_spark.flightlog import check
from mama_spark.flightlog.check import file_system
from mama_spark.nats.server.nats_server import NatsServer

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(nats_server: NatsServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code and output of ``mama check`` with some arguments."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["check", "--url", nats_server.url, *arguments])
        return code, capsys.readouterr().out

    return run


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["overlay", "fuse.s3fs"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file system that every path is on: which ones there are differs between machines."""
    found: str = request.param
    monkeypatch.setattr(check, "file_system", lambda path: found)
    return found


def test_relative_path_is_shown_as_the_place_that_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run("-o", "flightLog=data/log")
    assert code == 0
    assert f"flight log: {tmp_path}/data/log: no table yet" in text
    assert list(tmp_path.iterdir()) == []


def test_disk_of_one_machine_is_refused_for_a_cluster(tmp_path: Path, run: Run, kind: str) -> None:
    tables = ["-o", f"flightLog={tmp_path}/log", "-o", f"deadLetterTable={tmp_path}/dead", "-o", "onError=deadletter"]
    own_disk = kind in ("ext4", "overlay")
    code, text = run(*tables, "--master", "spark://cluster:7077")
    assert (code, text.count("BAD ")) == ((2, 2) if own_disk else (0, 0))
    if own_disk:
        for option in ("flightLog", "deadLetterTable"):
            assert f"{option} {tmp_path}/" in text
        assert "which executors of spark://cluster:7077 do not see: use a folder that" in text
    code, text = run(*tables)
    assert code == 0
    assert text.count("for a job on a cluster, use a folder that") == (2 if own_disk else 0)
    code, text = run(*tables, "--master", "local[4]")
    assert code == 0
    assert "use a folder" not in text


def test_master_of_spark_defaults_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(check, "file_system", lambda path: "ext4")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("# a comment\nspark.master   yarn\nspark.master.rest 1\n")
    code, text = run("-o", f"flightLog={tmp_path}/log")
    assert (code, "executors of yarn do not see" in text) == (2, True)
    assert run("-o", f"flightLog={tmp_path}/log", "--master", "local[2]")[0] == 0


def test_folder_with_files_of_others_is_refused(tmp_path: Path, run: Run) -> None:
    (tmp_path / "sales.csv").write_text("1")
    code, text = run("-o", f"flightLog={tmp_path}")
    assert code == 2
    assert f"flightLog {tmp_path} is no Delta table, and its folder holds other files (sales.csv)" in text


def test_this_machine_tells_its_file_systems() -> None:
    assert file_system("/proc") in ("proc", None)
