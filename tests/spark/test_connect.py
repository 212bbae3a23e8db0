"""``mamapub`` from a Spark Connect client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.servers import Admin
from mama_spark.testing.sink_runs import counts, flights, verdict

SCRIPT = Path(__file__).parent / "driver_scripts" / "connect.py"


def test_batch_and_stream_publish_through_spark_connect(nats_server: NatsServer, tmp_path: Path) -> None:
    source, log = tmp_path / "input", tmp_path / "log"
    source.mkdir()
    (source / "rows.json").write_text(
        "".join(f'{{"topic": "orders.s{i % 3}", "value": "stream {i}"}}\n' for i in range(500))
    )
    options = {"url": nats_server.url, "flightLog": str(log), "flightLogPayload": "all"}
    given = {"options": options, "input": str(source), "checkpoint": str(tmp_path / "checkpoint")}
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"])
        done = subprocess.run(
            [sys.executable, str(SCRIPT), json.dumps(given)], env=env, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        verdict(admin, "ORDERS", log, sent=1_500).raise_faults()
    assert counts(flights(log), "event") == {"acked": 1_500}
