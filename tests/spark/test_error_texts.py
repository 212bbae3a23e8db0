"""What a person sees after a mistake: the error is one line that says it, and nothing stands below it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin
from tests.support.spark.spark_jobs import conf_file, start

SCRIPT = Path(__file__).parent / "driver_scripts" / "mistakes.py"
USERS = "authorization { users: [{user: admin, password: p}] }"
ENV = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
#: Mistake -> what the error says, and what to do: one for each place that finds mistakes.
SAID = {
    "no server": ("no NATS server answers", "127.0.0.1:1", "option url"),
    "wrong password": ("refuses the credentials", "option"),
    "misspelled option": ("unknown option 'flightlgo'", "did you mean 'flightLog'?"),
    "no column topic": ("no column 'topic'", "name it so"),
    "overwrite": ("cannot overwrite", 'mode("append")'),
    "wildcard": ("1 row was not published", "topic 'demo.*' has a wildcard", "flight log: "),
    "read: no stream": ("no stream holds the topic 'nowhere.>'", "option topics"),
    "read: no topics": ("option topics",),
    "stream: misspelled option": ("unknown option 'flightlgo'", "did you mean 'flightLog'?"),
    "stream: checkpoint of another query": ("checkpoint", "another"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), config=USERS) as started:
        with Admin(started.url.replace("://", "://admin:p@")) as admin:
            admin.create_stream("DEMO", ["demo.>"])
        yield started


@pytest.fixture(scope="module")
def both(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What Python and a notebook show of each mistake: all in one driver."""
    command = [sys.executable, str(SCRIPT), server.url, str(tmp_path_factory.mktemp("mistakes"))]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, check=False, timeout=800)
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == SAID.keys()
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", SAID)
def test_last_line_says_what_happened_and_what_to_do_and_no_trace_of_a_worker_stands_around_it(
    both: dict[str, list[str]], mistake: str
) -> None:
    """Also in a cell of a notebook. The trace is that of the user's own call, and the error is its only line."""
    text, cell = both[mistake]
    lines = text.splitlines()
    for last in (lines[-1], cell.rstrip().splitlines()[-1]):
        assert [part for part in SAID[mistake] if part not in last] == [], last
    if mistake.startswith("stream"):
        return
    assert [line for line in lines if "mama_spark/" in line] == []
    at = next(i for i, line in enumerate(lines) if line.startswith("pyspark.errors."))
    assert len(lines) - at <= 2, "\n".join(lines[at:])  # Spark puts a task's error on a line of its own
    assert len(lines) <= 25


#: Spark's own log, and traces of its JVM in it, may be written at any moment, below the error too.
NO_LOG = ("--conf", "spark.log.level=OFF")


@pytest.mark.thorough
def test_spark_submit_ends_with_what_happened(tmp_path: Path) -> None:
    """Though Spark logs how it starts, works and ends: a job of ours keeps its log from standing below an error."""
    rows = {"format": "rate", "stream": True, "select": ["'demo.a' AS topic", "'x' AS value"]}
    stream = {"checkpointLocation": str(tmp_path / "checkpoint")}
    conf = conf_file(tmp_path / "a.toml", input=rows, mamapub={"url": "nats://127.0.0.1:1"}, stream=stream)
    with start("publish", conf, tmp_path / "out", "--master", "local[1]") as process:
        try:
            assert process.wait(800) != 0
        finally:
            process.kill()
    said = "mama_spark.contracts.errors.Unavailable: no NATS server answers within"
    lines = (tmp_path / "out").read_text().splitlines()
    assert any(" INFO " in line for line in lines), "Spark's own log is on"
    assert lines[-1].startswith(said), lines[-5:]


@pytest.mark.thorough
def test_the_shell_shows_what_happened_in_one_line(server: NatsServer) -> None:
    confs = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1")
    shell = [str(Path(sys.executable).parent / "pyspark"), "--master", "local[1]", *NO_LOG]
    shell += [part for conf in confs for part in ("--conf", conf)]
    typed = f'spark.read.format("mamasub").option("url", "{server.url}").option("topcis", "demo.>").load()\n'
    env = {**ENV, "PYSPARK_DRIVER_PYTHON_OPTS": "-i"}
    env.pop("SPARK_HOME", None)  # that of pyspark, which has the shell
    done = subprocess.run(shell, input=typed, capture_output=True, text=True, env=env, check=False, timeout=800)
    lines = [line.removeprefix(">>> ") for line in done.stderr.splitlines()]  # the shell's prompts
    assert "unknown option 'topcis'; did you mean 'topics'?" in [x for x in lines if x.strip()][-1], done.stderr[
        -3_000:
    ]
    assert "mama_spark/" not in done.stderr
