"""``mamasub`` from a Spark Connect client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.servers import Admin
from mama_spark.testing.sub_runs import plain, store

SCRIPT = Path(__file__).parent / "driver_scripts" / "connect_subscribe.py"


def test_batch_and_stream_read_through_spark_connect(nats_server: NatsServer, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("batch", "stream", "checkpoint")}
    given = {**folders, "options": {"url": nats_server.url, "topics": "orders.>"}}
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    sent = plain("orders.a", 600) + plain("orders.b", 400)
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"])
        store(admin, "ORDERS", sent)
    command = [sys.executable, str(SCRIPT), json.dumps(given)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3_000:]
    for name in ("batch", "stream"):
        table = pq.read_table(folders[name], columns=["sequence", "topic", "value"]).sort_by("sequence")
        assert table["sequence"].to_pylist() == list(range(1, 1_001))
        assert list(zip(table["topic"].to_pylist(), table["value"].to_pylist(), strict=True)) == [m[:2] for m in sent]
