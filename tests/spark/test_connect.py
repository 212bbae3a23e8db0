"""``mamapub`` and ``mamasub`` from a Spark Connect client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.discovery_watcher import Watcher
from tests.support.nats.nats_servers import Admin
from tests.support.spark.sink_harness import counts, flights, verdict
from tests.support.spark.spark_jobs import FREE_CONNECT_PORT

SCRIPT = Path(__file__).parent / "driver_scripts" / "connect.py"


@pytest.mark.thorough
def test_batches_and_streams_publish_and_read_through_spark_connect(nats_server: NatsServer, tmp_path: Path) -> None:
    source, log = tmp_path / "input", tmp_path / "log"
    source.mkdir()
    (source / "rows.json").write_text(
        "".join(f'{{"topic": "orders.s{i % 3}", "value": "stream {i}"}}\n' for i in range(500))
    )
    options = {"url": nats_server.url, "flightLog": str(log), "flightLogPayload": "all"}
    options |= {"announce": "true", "sourceName": "from afar"}
    given = {"options": options, "folder": str(tmp_path), "topics": "orders.>"}
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **FREE_CONNECT_PORT}
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"])
        done = subprocess.run(
            [sys.executable, str(SCRIPT), json.dumps(given)], env=env, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        verdict(admin, "ORDERS", log, sent=1_500).raise_faults()
        held = [(m.sequence, m.topic, m.payload) for m in admin.messages("ORDERS")]
        with Watcher(nats_server) as watcher:
            told = watcher.image()
        admin.api("STREAM.DELETE.ORDERS")
    assert counts(flights(log), "event") == {"acked": 1_500}
    assert [(r.name, r.state) for r in told] == [("from afar", "OFFLINE")] * 2  # the batch, and the stream
    for name in ("batch", "stream"):
        read = pq.read_table(tmp_path / name, columns=["sequence", "topic", "value"]).sort_by("sequence").to_pylist()
        assert [(row["sequence"], row["topic"], row["value"]) for row in read] == held
