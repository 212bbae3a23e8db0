"""A driver that is killed in the middle of a stream: what readers of discovery see, and what its restart publishes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import mama_spark
import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually
from pyspark.sql import SparkSession

from tests.support.discovery_watcher import Watcher
from tests.support.malamute.restartable_broker import RestartableNatsServer
from tests.support.processes import connected_to, descendants, jvm_of, none_alive
from tests.support.spark.sink_harness import WriteGate, counts, flights, verdict

SCRIPT = Path(__file__).parent / "driver_scripts" / "stream.py"
PATIENCE = 240.0
FILES = (200, 4_000)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_killed_driver_turns_suspect_and_then_offline_and_its_restart_loses_nothing(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    for number, count in enumerate(FILES):
        lines = (f'{{"topic": "orders.r{i % 5}", "value": "{number} {i}"}}' for i in range(count))
        file = tmp_path / "input" / f"{number}.json"
        file.write_text("\n".join([*lines, ""]))
        os.utime(file, (number, number))
    log, rows = tmp_path / "log", sum(FILES)
    options = {"url": nats_server.url, "flightLog": str(log), "flightLogPayload": "all"}
    given = {"folder": str(tmp_path), "options": {**options, "announce": "true", "sourceTtl": "8s"}}
    with RestartableNatsServer(nats_server) as room:
        room.create("ORDERS", "orders.>")
        stored = room.counter("ORDERS")
        with Watcher(nats_server) as watcher:
            env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
            output = tmp_path / "driver.out"
            with output.open("wb") as out:
                command = [sys.executable, str(SCRIPT), json.dumps(given)]
                driver = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
            try:
                enough = FILES[0] + 2_600  # of both partitions of the second file
                eventually(lambda: stored() >= enough or driver.poll() is not None, "messages are stored", PATIENCE)
                assert driver.poll() is None, output.read_text()[-3_000:]
                assert watcher.states()[:1] == ["ONLINE"]
                jvm = int(eventually(lambda: jvm_of(driver.pid), "the driver has a JVM"))
                family = descendants(jvm)
                assert connected_to(room.port, family)
                os.kill(jvm, signal.SIGKILL)
                driver.wait(PATIENCE)
                eventually(lambda: none_alive(family), "the workers ended with their driver", PATIENCE)
                assert enough <= stored() < rows
                eventually(lambda: watcher.states()[-1] == "server: OFFLINE", "the server says what it knows", PATIENCE)
            finally:
                driver.kill()
                driver.wait()
            dead = watcher.states()
            assert dead[-2:] == ["server: SUSPECT", "server: OFFLINE"]
            with WriteGate(tmp_path):
                pass
            query = run_path(str(SCRIPT))["start"](spark, given)
            with mama_spark.announced(query):
                assert query.awaitTermination(PATIENCE)
            assert watcher.states()[len(dead) :] == ["ONLINE", "OFFLINE"]
        verdict(room, "ORDERS", log, sent=rows).raise_faults()
    assert counts(flights(log), "batch_id") == dict(enumerate(FILES))
    assert counts(flights(log), "duplicate")[True] >= 2_600
