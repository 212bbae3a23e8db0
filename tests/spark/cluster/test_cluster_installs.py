"""Every job of ``jobs/`` on a cluster of Spark, started by ``spark-submit`` in client mode, with the package installed
in each of the ways of ``docs/how-to/install-on-a-cluster.md``. (``demo.py`` is a session of its own on one machine.)"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mama_spark.nats.server.nats_server import NatsServer

from tests.data.record_formats import openmama, tango
from tests.support.malamute.restartable_broker import RestartableNatsServer
from tests.support.spark.sink_harness import verdict
from tests.support.spark.spark_jobs import conf_file, delta_packages
from tests.support.spark.standalone import StandaloneCluster, compiled, submit
from tests.support.wheels import ROOT, bare_environment, build_wheel

#: Seconds for one job: Spark starts a JVM and the sources of a query anew for each, which takes long on a busy machine.
PATIENCE = 1_800.0
ROWS = 500
#: In this order: some jobs take what others have written.
JOBS = ("publish", "republish", "ingest", "discover", "report", "maintain", "openmama_archive", "tango_archive")
WITH_DELTA = ("ingest", "discover", "report", "openmama_archive", "tango_archive")

pytestmark = [pytest.mark.explore, pytest.mark.timeout(len(JOBS) * PATIENCE)]


@dataclass
class Installation:
    """One way to install the package.

    :ivar more: arguments of ``spark-submit``
    """

    python: str
    driver_python: str
    more: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def archive(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, packed by venv-pack."""
    folder = tmp_path_factory.mktemp("packed")
    env, packed = folder / "env", folder / "env.tar.gz"
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True, timeout=300)
    install = [str(env / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, str(wheel), "venv-pack", "setuptools<80"], check=True, timeout=900)
    subprocess.run([str(env / "bin" / "venv-pack"), "-p", str(env), "-o", str(packed)], check=True, timeout=900)
    return packed


@pytest.fixture(params=["environment", "archives", "wheel"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Installation:
    if request.param == "environment":
        return Installation(sys.executable, sys.executable)
    if request.param == "wheel":
        python = str(bare_environment(tmp_path / "bare"))
        return Installation(python, python, ("--py-files", str(request.getfixturevalue("wheel"))))
    packed: Path = request.getfixturevalue("archive")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "env", filter="fully_trusted")
    return Installation("env/bin/python", "env/bin/python", ("--archives", f"{packed}#env"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Spark whose Python is in archives, as other machines have it: no Python there needs a pyspark of its own."""
    folder = tmp_path_factory.mktemp("cluster")
    with StandaloneCluster(folder, home=compiled(folder / "spark")) as found:
        yield found


def test_python_takes_the_compiled_modules_of_spark(cluster: StandaloneCluster) -> None:
    archives = ":".join(str(path) for path in (cluster.home / "python" / "lib").glob("*.zip"))
    command = [sys.executable, "-c", "import py4j, pyspark; print(py4j.__file__, pyspark.__file__)"]
    found = subprocess.check_output(command, env={"PYTHONPATH": archives}, text=True, timeout=300)
    for name, file in zip(("py4j", "pyspark"), found.split(), strict=True):
        assert file.endswith(f".zip/{name}/__init__.pyc")


def tables_of(folder: Path, url: str) -> dict[str, dict[str, Any]]:
    """The configuration of each job."""
    lines = "\n".join(f'{{"region": "r{n % 5}", "number": {n}}}' for n in range(ROWS))
    (folder / "orders").mkdir()
    (folder / "orders" / "orders.json").write_text(lines)
    log = str(folder / "log")

    def stream(name: str) -> dict[str, str]:
        return {"checkpointLocation": str(folder / f"{name}-checkpoint"), "trigger": "availableNow"}

    select = ["concat('orders.', region) AS topic", "concat(region, ' ', number) AS value"]
    sink = {"url": url, "flightLog": log, "flightLogPayload": "all", "announce": "true", "sourceName": "orders job"}
    source = {"format": "json", "path": str(folder / "orders"), "select": select}
    table = {"path": str(folder / "table"), "select": ["topic", "cast(value AS STRING) AS text"]}
    return {
        "publish": {"input": source, "mamapub": sink},
        "republish": {"input": {"path": log}, "mamapub": {"url": url, "flightLog": log}},
        "ingest": {"mamasub": {"url": url, "topics": "orders.>"}, "output": table, "stream": stream("ingest")},
        "discover": {
            "mamadiscovery": {"url": url},
            "tables": {"history": str(folder / "history"), "current": str(folder / "current")},
            "stream": stream("discover"),
        },
        "report": {},
        "maintain": {"maintain": {"tables": [log]}},
        "openmama_archive": {
            "mamasub": {"url": url, "stream": "MAMA", "fields": "wIssueSymbol string"},
            "archive": {"path": str(folder / "openmama")},
            "stream": stream("openmama"),
        },
        "tango_archive": {
            "mamasub": {"url": url, "stream": "TANGO"},
            "archive": {"path": str(folder / "tango")},
            "stream": stream("tango"),
        },
    }


def test_every_job_runs_on_the_cluster(
    cluster: StandaloneCluster, nats_server: NatsServer, installed: Installation, tmp_path: Path
) -> None:
    tables, texts = tables_of(tmp_path, nats_server.url), dict[str, str]()
    with RestartableNatsServer(nats_server) as room:
        room.create("ORDERS", "orders.>")
        tango(room.admin, nats_server.url)
        openmama(room.admin, nats_server.url)
        for job in JOBS:
            conf = conf_file(tmp_path / f"{job}.toml", **tables[job])
            if job == "report":
                conf.write_text(f'flight_log = "{tmp_path}/log"\n')
            more = [*installed.more, *(delta_packages() if job in WITH_DELTA else ())]
            began = time.monotonic()
            with submit(
                cluster, tmp_path, ROOT / "jobs" / f"{job}.py", "--conf-file", str(conf),
                python=installed.python, driver_python=installed.driver_python, more=more,
            ) as application:  # fmt: skip
                texts[job] = application.wait(PATIENCE)
            print(f"{job}: {time.monotonic() - began:.0f} s", flush=True)
        verdict(room, "ORDERS", tmp_path / "log", sent=ROWS).raise_faults()
    assert "0 rows to publish again" in texts["republish"]
    assert "slowest_topics" in texts["report"]
    assert f"{tmp_path}/log: " in texts["maintain"]
    rows = {
        name: DeltaTable(str(tmp_path / name)).to_pyarrow_table() for name in ("table", "current", "openmama", "tango")
    }
    assert sorted(rows["table"]["text"].to_pylist()) == sorted(f"r{n % 5} {n}" for n in range(ROWS))
    assert rows["current"]["source_name"].to_pylist() == ["orders job"]
    assert (rows["openmama"].num_rows, rows["tango"].num_rows) == (3, 3)
