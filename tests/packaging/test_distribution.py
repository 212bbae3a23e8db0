"""The wheel and the editable installation, as a user gets them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TRY_FORMAT = """
import mama_spark, sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
try:
    df = spark.range(1).selectExpr("'a.b' AS topic", "cast('x' AS binary) AS value")
    df.write.format("mamapub").option("ackMod", "batch").mode("append").save()
except Exception as e:
    print("HOME", mama_spark.__file__)
    print("SAID", str(e).replace("\\n", " "))
spark.stop()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=250)
    (built,) = folder.glob("*.whl")
    return built


def environment(python: Path | str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")}
    return kept | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}


def fresh_environment(folder: Path) -> Path:
    """Sees the libraries of this environment, but not the package: `.pth` files of a path entry do not nest."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    libraries = Path(next(p for p in sys.path if p.endswith("site-packages")))
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return folder / "bin" / "python"


def install(python: Path, what: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(what)]
    subprocess.run([*command, "--force-reinstall"], check=True, timeout=250)


def said(python: Path, folder: Path) -> dict[str, str]:
    done = subprocess.run(
        [str(python), "-c", TRY_FORMAT],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(python),
        timeout=250,
    )
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    found = {word: rest for word, _, rest in lines if word in ("HOME", "SAID")}
    assert found, done.stderr
    return found


def test_the_wheel_holds_the_connector_and_nothing_else(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    tracked = subprocess.run(["git", "ls-files", "connector"], cwd=ROOT, capture_output=True, text=True, check=True)
    expected = {line.removeprefix("connector/") for line in tracked.stdout.splitlines()}
    assert {n for n in names if "__pycache__" not in n} >= expected
    assert {n.split("/")[0] for n in names} == {n.split("/")[0] for n in expected}
    assert {n for n in names if "/" not in n} == {n for n in expected if "/" not in n}
    meta = zipfile.ZipFile(wheel).read(next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("METADATA")))
    hard = [x for x in meta.decode().splitlines() if x.startswith("Requires-Dist: ") and "extra ==" not in x]
    assert not [x for x in hard if "spark" in x]


def test_spark_finds_the_format_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "env")
    install(python, wheel)
    found = said(python, tmp_path)
    assert found["HOME"].startswith(str(tmp_path))
    assert "ackMode" in found["SAID"]  # our own error for the wrong option, with the nearest name


def test_the_editable_installation_is_a_plain_path_entry_and_spark_finds_the_format(tmp_path: Path) -> None:
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    entries = [line for file in site.glob("*mama_spark*.pth") for line in file.read_text().splitlines()]
    assert entries == [str(ROOT / "connector")]
    found = said(Path(sys.executable), tmp_path)
    assert found["HOME"].startswith(str(ROOT / "connector"))
    assert "ackMode" in found["SAID"]


def test_a_wheel_given_by_py_files_works_once_the_format_is_registered(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "env")
    # pyspark gives .zip, .egg and .jar of --py-files to its workers, but not .whl
    archive = tmp_path / "mama_spark.zip"
    archive.write_bytes(wheel.read_bytes())
    job = tmp_path / "job.py"
    # Spark looks for formats with the path of its JVM, which does not have what --py-files brings
    register = "from pyspark_mamapub import DefaultSource\nspark.dataSource.register(DefaultSource)\ntry:\n"
    job.write_text(TRY_FORMAT.replace("try:\n", register, 1))
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run(
        [str(submit), "--master", "local[1]", "--py-files", str(archive), str(job)],
        capture_output=True, text=True, cwd=tmp_path, env=environment(python), timeout=250,
    )  # fmt: skip
    home = next((line for line in done.stdout.splitlines() if line.startswith("HOME ")), "")
    assert "mama_spark.zip" in home, done.stderr[-3000:]
    assert "ackMode" in done.stdout
