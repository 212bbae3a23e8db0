"""The wheel and the editable installation, as a user gets them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark import SparkContext

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
    """Of what is tracked, as a release is built: files that lie about here by chance are not in it."""
    folder, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
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
    names = sorted(n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n)
    listed = subprocess.run(["git", "ls-files", "connector"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert names == sorted(line.removeprefix("connector/") for line in listed.stdout.splitlines())
    meta = zipfile.ZipFile(wheel).read(next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("METADATA")))
    hard = [x for x in meta.decode().splitlines() if x.startswith("Requires-Dist: ") and "extra ==" not in x]
    assert not [x for x in hard if "spark" in x]


WRITE = """
import mama_spark
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
df = spark.range(100).selectExpr("concat('a.', id % 3) AS topic", "id AS n")
df.write.format("mamapub").option("url", "memory://own").option("flightLog", "log").mode("append").save()
from mama_spark.flightlog.report import summarise
print("ACKED", summarise("log", {}).count("acked", committed=True))
print("FROM", mama_spark.__file__)
spark.stop()
"""


@pytest.mark.timeout(900)
def test_what_the_wheel_depends_on_is_enough_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """The wheel and pyspark, and nothing else, from the registry."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True, timeout=120)
    python = tmp_path / "env" / "bin" / "python"
    pinned = f"pyspark=={version('pyspark')}"
    install_all = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel), pinned]
    subprocess.run(install_all, check=True, timeout=600, env=environment(python))
    done = subprocess.run(
        [str(python), "-c", WRITE], capture_output=True, text=True, cwd=tmp_path, env=environment(python), timeout=250
    )
    assert "ACKED 100" in done.stdout, done.stderr[-3000:]
    mama = [str(python.parent / "mama"), "flights", "log"]
    shown = subprocess.run(mama, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True).stdout
    assert "100 acked" in shown


def test_pyspark_hands_no_wheel_to_its_workers() -> None:
    """Why `register` hands them a copy named .zip; when this fails, it can do less."""
    assert ".whl" not in SparkContext.PACKAGE_EXTENSIONS
    assert ".zip" in SparkContext.PACKAGE_EXTENSIONS


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


@pytest.mark.parametrize("name", ["", "mama_spark.zip"], ids=["wheel", "zip"])
def test_a_wheel_given_by_py_files_works_once_the_formats_are_registered(
    wheel: Path, tmp_path: Path, name: str
) -> None:
    """Under its own name, which pyspark does not take to its workers, and under one that it does."""
    python = fresh_environment(tmp_path / "env")
    archive = tmp_path / (name or wheel.name)
    archive.write_bytes(wheel.read_bytes())
    job = tmp_path / "job.py"
    # Spark looks for formats with the path of its JVM, which does not have what --py-files brings
    job.write_text(WRITE.replace("df = ", "mama_spark.register(spark)\nmama_spark.register(spark)\ndf = ", 1))
    page = (ROOT / "docs" / "operations.md").read_text()
    assert "`spark-submit --py-files mama_spark-<version>-py3-none-any.whl job.py`" in page
    assert wheel.name == f"mama_spark-{version('mama-spark')}-py3-none-any.whl"
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run(
        [str(submit), "--master", "local[1]", "--py-files", archive.name, job.name],
        capture_output=True, text=True, cwd=tmp_path, env=environment(python), timeout=250,
    )  # fmt: skip
    assert "ACKED 100" in done.stdout, done.stderr[-3000:]
    assert f"{archive.name}/mama_spark" in done.stdout
