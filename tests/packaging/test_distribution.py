"""The wheel and the editable installation, as a user gets them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import mama_spark
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from pyspark import SparkContext

from tests.support.wheels import LIBRARIES, ROOT, bare_environment, build_wheel, site_of

JOB = """
import mama_spark
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
df = spark.range(100).selectExpr("concat('a.', id % 3) AS topic", "id AS n")
try:
    df.write.format("mamapub").option("ackMod", "batch").mode("append").save()
except Exception as e:
    print("SAID", str(e).replace("\\n", " "))
df.write.format("mamapub").option("url", "memory://own").option("flightLog", "log").mode("append").save()
from mama_spark.flightlog.reading import summarise
print("ACKED", summarise("log", {}).count("acked", committed=True))
print("FROM", mama_spark.__file__)
spark.stop()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


def environment(python: Path | str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")}
    return kept | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_environment(tmp_path_factory.mktemp("bare"))


def said(command: list[str], folder: Path, python: Path) -> dict[str, str]:
    """What a job prints, by its first word."""
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment(python), timeout=250, check=False
    )
    found = {word: rest for word, _, rest in (line.partition(" ") for line in done.stdout.splitlines())}
    assert (done.returncode, found.get("ACKED")) == (0, "100"), done.stderr[-3000:]
    return found


#: Folder of a clone -> where the wheel has it.
SHIPPED = {"connector/": "", "jobs/": "mama_spark/jobs/", "conf/": "mama_spark/jobs/conf/"}


@pytest.mark.thorough
def test_the_wheel_holds_the_connector_with_its_jobs_and_nothing_else(wheel: Path) -> None:
    names = sorted(n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n)
    listed = subprocess.run(["git", "ls-files", *SHIPPED], cwd=ROOT, capture_output=True, text=True, check=True)
    files = (line.partition("/") for line in listed.stdout.splitlines())
    assert names == sorted(f"{SHIPPED[top + slash]}{rest}" for top, slash, rest in files)
    meta = zipfile.ZipFile(wheel).read(next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("METADATA")))
    hard = [x for x in meta.decode().splitlines() if x.startswith("Requires-Dist: ") and "extra ==" not in x]
    assert not [x for x in hard if "spark" in x]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_what_the_wheel_depends_on_is_enough_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """What the registry has of it, and the pyspark of this environment: Spark finds the formats."""
    env, spark = tmp_path / "env", tmp_path / "spark"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True, timeout=120)
    python = env / "bin" / "python"
    # without --no-compile, pip compiles thousands of modules that nobody here imports
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
    install.append("--no-compile")
    subprocess.run([*install, str(wheel)], check=True, timeout=600, env=environment(python))
    spark.mkdir()
    for name in ("pyspark", "py4j"):
        (spark / name).symlink_to(LIBRARIES / name)
    (site_of(env) / "spark.pth").write_text(f"{spark}\n")
    found = said([str(python), "-c", JOB], tmp_path, python)
    assert found["FROM"].startswith(str(env))
    assert "ackMode" in found["SAID"]  # our own error for the wrong option, with the nearest name
    mama = [str(python.parent / "mama"), "flights", "log"]
    shown = subprocess.run(mama, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True).stdout
    assert "100 acked" in shown
    jobs_of_the_wheel(python, tmp_path)


def jobs_of_the_wheel(python: Path, folder: Path) -> None:
    """Jobs are listed, copied with their configuration file, and run from where they are installed."""

    def output(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=250, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    mama = str(python.parent / "mama")
    names = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    listed = [json.loads(line)["name"] for line in output(mama, "jobs", "--json").splitlines()]
    assert listed == sorted(names)
    installed = Path(output(mama, "jobs", "--path", "republish").strip())
    assert installed.is_relative_to(python.parent.parent)
    assert installed.read_bytes() == (ROOT / "jobs" / "republish.py").read_bytes()
    output(mama, "jobs", "--copy", "republish")
    conf = folder / "conf" / "republish.toml"
    assert conf.read_bytes() == (ROOT / "conf" / "republish.toml").read_bytes()
    conf.write_text(conf.read_text().replace("data/flight_log", "log"))
    run = output(str(python), "-m", "mama_spark.jobs.republish", "--conf-file", "conf/republish.toml")
    assert run == "0 rows to publish again from log\n"


def test_pyspark_hands_no_wheel_to_its_workers() -> None:
    """Why `register` hands them a copy named .zip; when this fails, it can do less."""
    assert ".whl" not in SparkContext.PACKAGE_EXTENSIONS
    assert ".zip" in SparkContext.PACKAGE_EXTENSIONS


def test_the_editable_installation_is_a_plain_path_entry() -> None:
    """Through which the other tests import the package, and Spark finds the formats."""
    entries = [line for file in LIBRARIES.glob("*mama_spark*.pth") for line in file.read_text().splitlines()]
    assert entries == [str(ROOT / "connector")]
    assert mama_spark.__file__.startswith(str(ROOT / "connector"))


#: A stream in both directions: Spark plans it and commits it in processes of their own, which look for files elsewhere.
STREAM = """
df.selectExpr("topic", "cast(n AS string) AS value").write.format("mamapub").options(**WHERE).mode("append").save()
query = (spark.readStream.format("mamasub").options(url=WHERE["url"], topics="a.>").load()
         .selectExpr("concat('b', substring(topic, 2)) AS topic", "value")
         .writeStream.format("mamapub").options(**WHERE).option("checkpointLocation", "checkpoint")
         .trigger(availableNow=True).start())
query.awaitTermination()
print("STREAMED", spark.read.format("mamasub").options(url=WHERE["url"], topics="b.>").load().count())
spark.stop()
"""


@pytest.mark.thorough
def test_a_wheel_given_by_py_files_works_once_the_formats_are_registered(
    wheel: Path, bare: Path, tmp_path: Path
) -> None:
    """Under its own name, which pyspark does not take to its workers."""
    shutil.copy(wheel, tmp_path)
    # Spark looks for formats with the path of its JVM, which does not have what --py-files brings
    job = tmp_path / "job.py"
    text = JOB.replace("df = ", "mama_spark.register(spark)\nmama_spark.register(spark)\ndf = ", 1)
    page = (ROOT / "docs" / "how-to" / "install-on-a-cluster.md").read_text()
    assert "`spark-submit --py-files mama_spark-<version>-py3-none-any.whl job.py`" in page
    assert wheel.name == f"mama_spark-{version('mama-spark')}-py3-none-any.whl"
    submit = str(Path(sys.executable).parent / "spark-submit")
    with NatsServer(tmp_path / "nats") as server:
        where = {"url": server.url, "createStream": "true"}
        job.write_text(f"WHERE = {where}\n" + text.replace("spark.stop()\n", STREAM))
        found = said([submit, "--master", "local[1]", "--py-files", wheel.name, job.name], tmp_path, bare)
    assert f"{wheel.name}/mama_spark" in found["FROM"]
    assert found["STREAMED"] == "100"


REGISTER = """
from types import SimpleNamespace
import mama_spark
class Session:
    registered, conf = [], SimpleNamespace(getAll={})
    @property
    def dataSource(self): return self
    def register(self, source): self.registered.append(source.name())
mama_spark.register(Session())
print(mama_spark.__file__, *Session.registered)
"""


@pytest.mark.thorough
def test_a_package_under_a_name_that_pyspark_takes_is_handed_to_nobody(wheel: Path, bare: Path, tmp_path: Path) -> None:
    """The session has no way to hand it on."""
    archive = tmp_path / "mama_spark.zip"
    shutil.copy(wheel, archive)
    env = {**environment(bare), "PYTHONPATH": str(archive)}
    done = subprocess.run([bare, "-c", REGISTER], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.stdout.split()[1:] == ["mamapub", "mamasub", "mamadiscovery"], done.stderr
    assert done.stdout.startswith(str(archive))
