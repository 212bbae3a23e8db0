"""``jobs/ingest.py`` as its users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.servers import Admin
from mama_spark.testing.sub_runs import delta_rows, plain, store

ROOT = Path(__file__).parents[2]


def ingest(conf: Path) -> None:
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2,4]"]
    submit += ["--packages", "io.delta:delta-spark_4.2_2.13:4.4.0"]
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    submit += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    submit += [str(ROOT / "jobs" / "ingest.py"), "--conf-file", str(conf)]
    done = subprocess.run(submit, capture_output=True, text=True, timeout=500, env=env)
    assert done.returncode == 0, done.stderr[-3_000:]


@pytest.mark.timeout(900)
def test_ingest_job_fills_a_delta_table_and_goes_on_where_it_was(nats_server: NatsServer, tmp_path: Path) -> None:
    tables: dict[str, dict[str, Any]] = {
        "mamasub": {"url": nats_server.url, "topics": ["orders.>", "trades.*"], "maxOffsetsPerTrigger": 400},
        "output": {
            "path": str(tmp_path / "table"),
            "select": ["topic", "cast(value AS STRING) AS text", "to_date(timestamp) AS day", "sequence"],
            "partitionBy": ["day"],
        },
        "stream": {"checkpointLocation": str(tmp_path / "checkpoint"), "trigger": "availableNow"},
    }
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    conf = tmp_path / "ingest.toml"
    conf.write_text("\n".join([*lines, ""]))
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"])
        admin.create_stream("TRADES", ["trades.>"])
        sent = plain("orders.a", 500) + plain("trades.b", 300)
        store(admin, "ORDERS", sent[:500])
        store(admin, "TRADES", sent[500:])
        ingest(conf)
        assert sorted(r["text"] for r in delta_rows(tmp_path / "table")) == sorted(p.decode() for _, p, _ in sent)
        more = plain("orders.c", 200)
        store(admin, "ORDERS", more)
        ingest(conf)
    texts = [r["text"] for r in delta_rows(tmp_path / "table")]
    assert sorted(texts) == sorted(p.decode() for _, p, _ in [*sent, *more])
    assert DeltaTable(str(tmp_path / "table")).metadata().partition_columns == ["day"]
