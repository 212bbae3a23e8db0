"""``mama jobs`` in a clone; tests/packaging has that of a wheel."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from mama_spark.cli.commands.jobs import delta_package
from mama_spark.cli.main import main
from mama_spark.jobs import configuration_files, jobs

ROOT = Path(__file__).resolve().parents[4]


def test_every_job_says_in_a_sentence_what_it_does_and_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert [job.name for job in jobs()] == sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
    assert main(["jobs"]) == 0
    shown = capsys.readouterr().out
    for job in jobs():
        assert job.summary.endswith(".")
        assert job.needs
        assert f"{job.name}\n    {job.summary}\n    Needs {job.needs}." in shown
    files = {path.name for path in (ROOT / "conf").iterdir() if path.is_file()}
    assert files <= {*shown.split()}
    assert {*configuration_files()} == files, "a folder cannot be copied by its name"


def test_every_job_that_uses_a_format_registers_it() -> None:
    """Spark finds the formats of an installed package only; a wheel of ``--py-files`` is none."""
    texts = {path.stem: path.read_text() for path in (ROOT / "jobs").glob("*.py") if not path.stem.endswith("demo")}
    users = {name for name, text in texts.items() if re.search(r'format\("mama', text)}
    assert {"publish", "ingest", "openmama_archive"} <= users
    registering = {name for name, text in texts.items() if "mama_spark.register(spark)" in text}
    assert users - registering == {"pipeline"}  # whose client fails after it, with UNKNOWN_RESPONSE (Spark 4.2)


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


def test_jars_of_delta_are_those_that_spark_has_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the folder of Ivy below ``HOME``; or where Java has its home, which does not follow ``HOME``."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("mama_spark.cli.commands.jobs._home_of_java", lambda: tmp_path / "java")
    assert main(["jobs", "--delta-jars"]) == 2
    ivy = tmp_path / "home" / ".ivy2.5.2"
    told = capsys.readouterr().err
    assert f"spark-submit --conf spark.jars.ivy={ivy} --packages {delta_package()} {ROOT}/jobs/report.py --help" in told
    for folder in (tmp_path / "java" / ".ivy2.5.2" / "jars", ivy / "jars"):
        folder.mkdir(parents=True)
        assert_these_are_found(folder, capsys)


def assert_these_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = ("delta-spark_4.0_2.13-4.4.0", "delta-storage-3.2.0")
    for name in ("delta-spark_4.2_2.13-4.4.0", "delta-storage-4.4.0", *others):
        (folder / f"io.delta_{name}.jar").touch()
    (folder / "org.slf4j_slf4j-api-2.0.13.jar").touch()
    assert main(["jobs", "--delta-jars"]) == 0
    fetched = [f"{folder}/io.delta_{name}.jar" for name in ("delta-spark_4.2_2.13-4.4.0", "delta-storage-4.4.0")]
    assert capsys.readouterr().out.strip().split(",") == fetched


def test_the_package_of_delta_is_the_one_that_is_installed_and_documented() -> None:
    package = delta_package()
    assert package.rpartition(":")[2] == version("delta-spark")
    others = {delta_package("4.0.5"), delta_package("4.1.4")}
    for path in [*(ROOT / "jobs").glob("*.py"), *(ROOT / "conf").glob("*.toml"), *(ROOT / "docs").rglob("*.md")]:
        assert set(re.findall(r"io\.delta:[\w.:-]*[\w]", path.read_text("utf-8"))) <= {package, *others}, path


def test_a_spark_that_delta_has_no_release_for_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mama_spark.cli.commands.jobs.version", lambda _: "4.3.0")
    assert main(["jobs", "--delta-jars"]) == 2
    assert "Delta has no release for Spark 4.3: start jobs that need it with Spark 4.2" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--path", "--copy"])
def test_unknown_names_are_answered_with_those_that_there_are(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", option, "publsh"]) == 2
    assert "there is no job 'publsh'; there are audit, demo, discover, ingest, maintain," in capsys.readouterr().err


def test_a_job_runs_as_a_module_in_a_clone_too() -> None:
    command = [sys.executable, "-m", "mama_spark.jobs.report", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "--conf-file" in done.stdout
