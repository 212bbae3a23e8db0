"""``mama jobs`` in a clone; tests/packaging has that of a wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mama_spark.cli import main
from mama_spark.jobs import jobs

ROOT = Path(__file__).resolve().parents[3]


def test_every_job_says_in_a_sentence_what_it_does_and_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert [job.name for job in jobs()] == sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
    assert main(["jobs"]) == 0
    shown = capsys.readouterr().out
    for job in jobs():
        assert job.summary.endswith(".")
        assert job.needs
        assert f"{job.name}\n    {job.summary}\n    Needs {job.needs}." in shown
    assert {path.name for path in (ROOT / "conf").iterdir()} <= {*shown.split()}


def test_a_copy_has_all_files_that_the_job_begins_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the commands of the documentation run in that folder as in a clone."""
    assert main(["jobs", "--copy", "publish", str(tmp_path)]) == 0
    copies = [Path(line) for line in capsys.readouterr().out.splitlines()]
    files = {path.relative_to(tmp_path).as_posix() for path in copies}
    assert files == {"jobs/publish.py", "jobs/orders.json", "conf/publish.toml", "conf/mama.properties"}
    assert all(path.read_bytes() == (ROOT / path.relative_to(tmp_path)).read_bytes() for path in copies)


def test_one_configuration_file_is_copied_by_its_name(tmp_path: Path) -> None:
    assert main(["jobs", "--copy", "broker.toml", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.rglob("*.*")] == ["broker.toml"]


def test_no_copy_replaces_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "publish.toml").write_text("mine")
    assert main(["jobs", "--copy", "publish", str(tmp_path)]) == 2
    assert "conf/publish.toml exists, nothing was copied" in capsys.readouterr().err
    assert (tmp_path / "conf" / "publish.toml").read_text() == "mine"
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("arguments", [["--path", "publsh"], ["--copy", "publsh"]])
def test_unknown_names_are_answered_with_those_that_there_are(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", *arguments]) == 2
    assert (
        "there is no job 'publsh'; there are demo, discover, ingest, maintain, openmama_archive, publish,"
        in capsys.readouterr().err
    )


def test_a_job_runs_as_a_module_in_a_clone_too() -> None:
    command = [sys.executable, "-m", "mama_spark.jobs.report", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "--conf-file" in done.stdout
