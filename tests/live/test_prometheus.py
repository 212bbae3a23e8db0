"""A real Prometheus scrapes a running write and a Malamute broker: every query of the dashboard has an answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pyarrow as pa
import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.cli import main
from mama_spark.metrics.provider import meter_provider
from mama_spark.options import SinkOptions
from mama_spark.spark.sink.encoding.column_plan import ColumnPlan
from mama_spark.spark.sink.job import SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.testing.waiting import eventually
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

from tests.support.ports import lasting_port

CONF = Path(__file__).resolve().parents[2] / "conf" / "observability"


def make_provider() -> MeterProvider:
    """Named by the option ``metrics``."""
    return MeterProvider([PrometheusMetricReader()])


@pytest.fixture
def broker_metrics(tmp_path: Path) -> Iterator[str]:
    """The address of the metrics of a Malamute broker that has got a message."""
    bind, metrics = f"tcp://127.0.0.1:{lasting_port()}", f"127.0.0.1:{lasting_port()}"
    (tmp_path / "broker.toml").write_text(f'[broker]\nmetrics = "{metrics}"\n')
    command = [sys.executable, "-u", "-m", "mama_spark.cli", "broker", "--bind", bind]
    with subprocess.Popen(
        [*command, "--conf-file", str(tmp_path / "broker.toml")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        assert main(["pub", "t", "x", "--url", bind.replace("tcp", "mlp"), "-o", "stream=S"]) == 0
        yield metrics
        process.terminate()
        process.wait(60)


class Prometheus:
    """Debian's, with the rules of this project."""

    def __init__(self, folder: Path, *targets: str) -> None:
        folder.mkdir()
        shutil.copy(CONF / "alerts.yml", folder)
        (folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
                    "rule_files": ["alerts.yml"],
                    "scrape_configs": [{"job_name": "mama", "static_configs": [{"targets": list(targets)}]}],
                }
            )
        )
        self.address = f"127.0.0.1:{lasting_port()}"
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                ["prometheus", *options, f"--web.listen-address={self.address}"], stdout=log, stderr=log
            )

    def ask(self, call: str, **query: str) -> Any:
        try:
            with urlopen(f"http://{self.address}/api/v1/{call}?{urlencode(query)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def value(self, expression: str) -> list[Any]:
        found = self.ask("query", query=expression)
        return [] if found is None else list(found["result"])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def publish(server: NatsServer, log: Path, stop: threading.Event) -> None:
    """A write with some rows that fail, until ``stop``."""
    o = SinkOptions.parse(
        {
            "url": server.url, "stream": "S", "createStream": "true", "onError": "log", "flightLog": str(log),
            "maxRatePerPartition": "500", "metrics": f"{__name__}:make_provider",
        }
    )  # fmt: skip

    def rows() -> Iterator[pa.RecordBatch]:
        number = 0
        while not stop.is_set():
            number += 1
            values = [b"%d-%d" % (number, i) for i in range(100)]
            yield pa.record_batch({"topic": ["metrics.rows"] * 99 + ["not a topic"], "value": values})

    task = TaskInfo(0, 0, None, None, None, False, "app", "app-1")
    publish_partition(
        SinkJob(o, ColumnPlan("topic", (), "value", (), None, "", None, ()), False, "run", ()), task, rows()
    )


def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path, broker_metrics: str) -> None:
    assert shutil.which("prometheus"), "prometheus is missing: run make setup"
    meter_provider.cache_clear()
    served, _ = start_http_server(0, "127.0.0.1")
    prometheus = Prometheus(tmp_path / "prometheus", f"127.0.0.1:{served.server_port}", broker_metrics)
    stop = threading.Event()
    with NatsServer(tmp_path / "nats") as server:
        writing = threading.Thread(target=publish, args=(server, tmp_path / "log", stop))
        writing.start()
        try:
            panels = json.loads((CONF / "dashboard.json").read_text())["panels"]
            for expression in [target["expr"] for panel in panels for target in panel["targets"]]:
                eventually(partial(prometheus.value, expression), f"an answer to {expression}")
            rate = "sum by (bridge) (rate(mama_publisher_acknowledged_total[1m]))"
            eventually(lambda: float(prometheus.value(rate)[0]["value"][1]) > 100, "the rate of the write")
            [failed] = prometheus.value("sum by (status) (mama_publisher_failed_total)")
            assert failed["metric"] == {"status": "BAD_SYMBOL"}
            rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
            assert len(rules) == 5
            eventually(lambda: all(r["health"] == "ok" for r in _rules(prometheus)), "the rules evaluated")
            eventually(lambda: "MamaMessagesFail" in _firing(prometheus), "the alert of rows that fail")
        finally:
            stop.set()
            writing.join(120)
            prometheus.stop()
            served.shutdown()
            served.server_close()
    assert not writing.is_alive()


def _rules(prometheus: Prometheus) -> list[Any]:
    return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


def _firing(prometheus: Prometheus) -> set[str]:
    return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"}


def test_every_panel_has_unit_and_says_what_healthy_looks_like() -> None:
    for panel in json.loads((CONF / "dashboard.json").read_text())["panels"]:
        assert "Healthy:" in panel["description"]
        assert panel["fieldConfig"]["defaults"]["custom"]["axisLabel"]
