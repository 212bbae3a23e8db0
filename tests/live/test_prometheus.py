"""A real Prometheus scrapes a running write, readers, a Malamute broker, recorders and sources: every query of the
dashboard has an answer."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from mama_spark.cli.commands.record import log_options, record
from mama_spark.cli.main import main
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLogBridge
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.recorder.settings import OpenMamaRecorderSettings
from mama_spark.openmama.source.market_data_source import SourceRules
from mama_spark.options import SinkOptions
from mama_spark.publishing.window.reconnecting import ReconnectingBridge
from mama_spark.recording.log_follower import LogFollower
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.query_progress import QueryProgress
from mama_spark.spark.sink.job import ColumnPlan, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.tango.bridge import RecordCodec
from mama_spark.tango.recorder.settings import TangoRecorderSettings
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.log_replayer import LogReplayer
from mama_spark.tango.source.replay_service import ReplayService
from mama_spark.telemetry.metrics_server import served_metrics
from mama_spark.telemetry.task_metrics import meter_provider
from mama_spark.testing.waiting import eventually
from opentelemetry.sdk.metrics import MeterProvider

from tests.support.openmama.network import naming, url_of
from tests.support.openmama.source import MarketDataLab
from tests.support.ports import lasting_port

DEVICE = "lab/cell/1"
#: As Spark's, of one micro-batch of a query over mamasub.
SOURCE = SimpleNamespace(
    endOffset='{"S": {"next": 11, "identity": "i"}}', latestOffset='{"S": {"next": 51, "identity": "i"}}'
)
PROGRESS = SimpleNamespace(
    progress=SimpleNamespace(
        name="audit", id="q", batchId=3, numInputRows=1200, processedRowsPerSecond=600.0, batchDuration=2000,
        sources=(SOURCE,),
    )
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf" / "observability"
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
FREE = cache(lasting_port)


def make_provider() -> MeterProvider:
    """Named by the option ``metrics``: what the page shows, in a process that finds its first port taken."""
    found = re.search(r"(?s)<!-- run: prometheus -->\n```python\n(.*?)```", PAGE)
    assert found is not None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code = found[1].replace("range(9464, 9480)", f"{taken.getsockname()[1], FREE()}")
        exec(code, made := {"__name__": "metrics_setup"})
        return made["provider"]()  # type: ignore[operator,no-any-return]


@pytest.fixture
def broker_metrics() -> Iterator[str]:
    """The address of the metrics of a Malamute broker that has got a message."""
    bind, metrics = f"tcp://127.0.0.1:{lasting_port()}", f"127.0.0.1:{lasting_port()}"
    command = [sys.executable, "-u", "-m", "mama_spark.cli", "broker", "--bind", bind, "--metrics", metrics]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        assert main(["pub", "t", "x", "--url", bind.replace("tcp", "mlp"), "-o", "stream=S"]) == 0
        yield metrics
        process.terminate()
        process.wait(60)


@contextmanager
def tango_source_metrics(folder: Path) -> Iterator[tuple[str, str]]:
    """A Tango source over a log in memory: the addresses of its metrics and of its calls."""
    name, stop = uuid4().hex, threading.Event()
    columns = {"device": [DEVICE], "attribute": ["level"], "value": pa.array([1.5])}
    made = RecordCodec("lab", "tango").encode(pa.RecordBatch.from_pydict(columns))
    MemoryLogs(name).log(name).append(MessageBatch(made.topics, made.payloads))
    source = TangoEventSource()
    bridge = ReconnectingBridge[RecordLogBridge](lambda: MemoryLogs(name), 5.0)
    follower = LogFollower(bridge, name)
    service = ReplayService(source, LogReplayer(source), follower, folder / "position", stop, _ignore, _ignore)
    address = f"127.0.0.1:{lasting_port()}"
    thread = threading.Thread(target=service.run, args=("earliest", 0.0))
    with served_metrics(address, service.metrics, _ignore, _ignore):
        thread.start()
        try:
            eventually(lambda: source.running, "the source")
            yield address, f"127.0.0.1:{source.port}"
        finally:
            stop.set()
            thread.join(60)
            source.close()
            follower.close()
            MemoryBroker.forget(name)


@contextmanager
def recorder_metrics(options: dict[str, str], **given: Any) -> Iterator[str]:
    """The address of the metrics of a recorder."""
    address, stop = f"127.0.0.1:{lasting_port()}", threading.Event()
    kind = OpenMamaRecorderSettings if given["url"].startswith("oz") else TangoRecorderSettings
    settings = kind.of({**given, "metrics": address, "report": "off", "drain": "60s"})
    args = (settings, log_options({**options, "createStream": "true"}), stop.is_set, _ignore)
    thread = threading.Thread(target=record, args=args)
    thread.start()
    try:
        yield address
    finally:
        stop.set()
        thread.join(120)


@contextmanager
def programs(folder: Path, server: NatsServer) -> Iterator[list[str]]:
    """The addresses of the metrics of both recorders and both sources; one records what the other serves."""
    quotes = uuid4().hex
    with naming() as names, tango_source_metrics(folder) as (tango, calls):
        lab = MarketDataLab(folder, quotes, url_of(names), SourceRules())
        lab.store("A", x=1)
        lab.start()
        address = f"127.0.0.1:{lasting_port()}"
        to = {"url": f"{server.url}/RECORDED"}
        try:
            with (
                served_metrics(address, lab.server.metrics, _ignore, _ignore),
                recorder_metrics(
                    {"url": f"{server.url}/MAMA"}, url=url_of(names), symbols=["S.A"], name="quotes"
                ) as mama,
                recorder_metrics(to, url=f"tango://{calls}#dbase=no", devices=[DEVICE], attributes=["level"]) as events,
            ):
                yield [tango, address, mama, events]
        finally:
            lab.stop()
            MemoryBroker.forget(quotes)


def read_again_and_again(server: NatsServer, stop: threading.Event) -> None:
    """As tasks do, with metrics, until ``stop``."""
    given = {"url": server.url, "stream": "S", "metrics": f"{__name__}:make_provider"}
    while not stop.wait(0.5):
        reader = MamaSubDataSource(given).reader(SCHEMA)
        for task in reader.partitions():
            for _ in reader.read(task):
                pass


def _ignore(text: str) -> None:
    pass


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


@pytest.mark.thorough
def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path, broker_metrics: str) -> None:
    assert shutil.which("prometheus"), "prometheus is missing: run make setup"
    meter_provider.cache_clear()
    stop = threading.Event()
    with NatsServer(tmp_path / "nats") as server, programs(tmp_path, server) as others:
        targets = (f"127.0.0.1:{FREE()}", broker_metrics, *others)
        prometheus = Prometheus(tmp_path / "prometheus", *targets)
        working = [
            threading.Thread(target=publish, args=(server, tmp_path / "log", stop)),
            threading.Thread(target=read_again_and_again, args=(server, stop)),
        ]
        working[0].start()
        try:
            rate = "sum by (bridge) (rate(mama_publisher_acknowledged_total[1m]))"
            eventually(lambda: _first(prometheus.value(rate)) > 100, "the rate of the write")
            working[1].start()
            QueryProgress(f"{__name__}:make_provider").onQueryProgress(PROGRESS)
            panels = json.loads((CONF / "dashboard.json").read_text())["panels"]
            for expression in [target["expr"] for panel in panels for target in panel["targets"]]:
                eventually(partial(prometheus.value, expression), f"an answer to {expression}")
            [failed] = prometheus.value("sum by (status) (mama_publisher_failed_total)")
            assert failed["metric"] == {"status": "BAD_SYMBOL"}
            read = "sum by (format, bridge, stream) (mama_reader_rows_total)"
            eventually(lambda: _first(prometheus.value(read)) > 100, "the messages that were read")
            assert prometheus.value(read)[0]["metric"] == {"format": "mamasub", "bridge": "nats", "stream": "S"}
            for network in ("tango", "oz"):  # what the sources serve
                stored = f'mama_recorder_stored_total{{network="{network}"}}'
                eventually(lambda q=stored: _first(prometheus.value(q)) > 1, f"records of {network}")  # type: ignore[misc]
            eventually(lambda: all(r["health"] == "ok" for r in _rules(prometheus)), "the rules evaluated")
            assert len(_rules(prometheus)) == 10
            eventually(lambda: "MamaMessagesFail" in _firing(prometheus), "the alert of rows that fail")
        finally:
            stop.set()
            for thread in working:
                if thread.ident is not None:
                    thread.join(120)
            prometheus.stop()
    assert not any(thread.is_alive() for thread in working)


def _first(answer: list[Any]) -> float:
    return float(answer[0]["value"][1]) if answer else 0.0


def _rules(prometheus: Prometheus) -> list[Any]:
    return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


def _firing(prometheus: Prometheus) -> set[str]:
    return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"}


def test_every_panel_has_unit_and_says_what_healthy_looks_like() -> None:
    for panel in json.loads((CONF / "dashboard.json").read_text())["panels"]:
        assert "Healthy:" in panel["description"]
        assert panel["fieldConfig"]["defaults"]["custom"]["axisLabel"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("alert", "counter", "label"),
    [
        ("MamaMessagesFail", "mama_publisher_failed_total", ("status", "BAD_SYMBOL")),
        ("MamaReaderCannotDecode", "mama_reader_undecodable_total", ("stream", "S")),
    ],
)
@pytest.mark.parametrize("values", ["_ _ 50x10 stale 50x20", "0 0 50x30"])  # begins with them, grows
def test_failures_that_all_come_at_once_are_told(
    tmp_path: Path, alert: str, counter: str, label: tuple[str, str], values: str
) -> None:
    name, value = label
    groups = yaml.safe_load((CONF / "alerts.yml").read_text())["groups"]
    [rule] = [rule for group in groups for rule in group["rules"] if rule["alert"] == alert]
    told = {
        "exp_labels": {**rule["labels"], name: value},
        "exp_annotations": {k: v.replace(f"{{{{ $labels.{name} }}}}", value) for k, v in rule["annotations"].items()},
    }
    alerts = [
        {"eval_time": at, "alertname": alert, "exp_alerts": expected}
        for at, expected in (("1m", []), ("3m", [told]), *((f"{m}m", []) for m in range(9, 30)))
    ]
    series = [{"series": f'{counter}{{{name}="{value}"}}', "values": values}]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": alerts}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [str(CONF / "alerts.yml")], "tests": [test]}))
    promtool = Path(shutil.which("prometheus") or "prometheus").resolve().with_name("promtool")
    ran = subprocess.run([promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
