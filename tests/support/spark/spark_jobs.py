"""The jobs of ``jobs/``: run in the Spark session of the tests, or as their users start them, by ``spark-submit``."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mama_spark import jobs
from mama_spark.cli.commands import jobs as jobs_command
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
#: Environment of a process that starts a Spark Connect server: at any free port, where there may be another one.
FREE_CONNECT_PORT = {"SPARK_TESTING": "1"}


def delta_packages() -> tuple[str, str]:
    """Brings Delta by Ivy, Spark's resolver, which takes longer to start than the session."""
    return "--packages", jobs_command.delta_package()


def delta_jars() -> tuple[str, str]:
    return "--jars", ",".join(map(str, jobs_command.delta_jars()))


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
PATIENCE = 800.0


def conf_file(path: Path, **tables: dict[str, Any]) -> Path:
    """A configuration file of these tables."""
    lines: list[str] = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join([*lines, ""]))
    return path


def in_session(spark: SparkSession, job: str, conf: Path) -> None:
    """Run the file in this process; the session outlives it."""
    script, name = str(ROOT / "jobs" / f"{job}.py"), spark.conf.get("spark.app.name")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, "--conf-file", str(conf)])
        patch.setattr(SparkSession, "stop", lambda _: None)
        try:
            runpy.run_path(script, run_name="__main__")
        finally:
            spark.conf.set("spark.app.name", str(name))


def start(job: str, conf: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    """``spark-submit $(mama jobs --path JOB)``.

    :param output: file that gets what it prints
    :param more: arguments of ``spark-submit``
    """
    programs = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    env |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [str(programs / "spark-submit"), "--master", "local[2,4]", *more]
    command += [part for name, value in _SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    command += [str(jobs.find(job).path), "--conf-file", str(conf)]
    with output.open("w") as out:
        return subprocess.Popen(command, env=env, stdout=out, stderr=out, text=True, cwd=conf.parent)


def submit(job: str, conf: Path, *more: str) -> str:
    """``spark-submit`` to its end; what it printed."""
    output = conf.with_suffix(".out")
    with start(job, conf, output, *more) as process:
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
    assert code == 0, output.read_text()[-3_000:]
    return output.read_text()
