"""The job that is a declarative pipeline runs as it is copied."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mama_spark.cli.main import main
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin
from tests.support.spark.sink_harness import counts, flights
from tests.support.spark.spark_jobs import FREE_CONNECT_PORT


@pytest.mark.thorough
def test_the_pipeline_runs_as_written(nats_server: NatsServer, tmp_path: Path) -> None:
    assert main(["jobs", "--copy", "pipeline", str(tmp_path)]) == 0
    for name in ("conf/pipeline.yml", "jobs/pipeline.py"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        here = text.replace("/tmp/mama", str(tmp_path)).replace("nats://127.0.0.1:4222", nats_server.url)
        (tmp_path / name).write_text(here, encoding="utf-8")
    with Admin(nats_server.url) as admin:
        admin.create_stream("PIPELINE", ["demo.orders.*", "demo.checked.*"])
        for number in range(20):
            admin.publish(f"demo.orders.{number % 3}", b"%d" % number)
        command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", "conf/pipeline.yml"]
        env = {**os.environ, **FREE_CONNECT_PORT}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False, env=env)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        stored = [message.topic for message in admin.messages("PIPELINE")]
        assert sum(topic.startswith("demo.checked.") for topic in stored) == 20
        admin.api("STREAM.DELETE.PIPELINE")
    assert counts(flights(tmp_path / "pipeline_log"), "event") == {"acked": 20}
