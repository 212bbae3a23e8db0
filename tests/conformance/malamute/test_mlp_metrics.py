"""What a broker tells of itself: in process, over HTTP and in lines of the command."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed, ConfigError
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.broker.metrics import summary
from mama_spark.malamute.broker.session.settings import Limits, SessionSettings
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.commands.broker import serve
from mama_spark.malamute.protocol import commands
from mama_spark.telemetry.exposition import CONTENT_TYPE, Metric, exposition
from mama_spark.telemetry.metrics_server import MetricsServer
from prometheus_client.parser import text_string_to_metric_families

from tests.support.malamute.mlp import MlpSite, Peer

PATIENCE = 60.0
PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
#: Those of the broker on the page of metrics, which dashboards refer to.
_LIST = PAGE.split("names begin with `malamute_`:\n\n")[1].split("\n\n")[0]
NAMES = {f"malamute_{name}" for name in re.findall(r"`(\w+)(?:\{\w+\})?`", _LIST)}
SAMPLE = re.compile(r'^malamute_[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? -?[0-9.e+]+$')


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    choices = (EngineChoice(b"^d", "durable", {"folder": str(tmp_path)}),)
    machine = SessionSettings(mailboxes=Limits(each=10))
    with Broker(BrokerSettings("tcp://127.0.0.1:*", machine, choices, metrics="127.0.0.1:0")) as broker:
        yield broker


def client(broker: Broker, address: str = "", **options: Any) -> MalamuteClient:
    return MalamuteClient(broker.endpoint.replace("tcp", "mlp"), address, timeout=PATIENCE, **options)


def values(metrics: list[Metric]) -> dict[str, float]:
    return {
        name + "".join(f"[{label}]" for _, label in labels): value
        for name, _, samples in metrics
        for labels, value in samples
    }


def page(broker: Broker, path: str) -> str:
    with urllib.request.urlopen(f"{broker.metrics_url}{path}", timeout=PATIENCE) as answer:
        found: bytes = answer.read()
    return found.decode()


def test_what_clients_do_is_counted(broker: Broker) -> None:
    before = values(broker.metrics())
    assert before["malamute_clients"] == 0
    with client(broker, "r", window=0) as reader, client(broker, "w") as writer:
        reader.read("s", "a")
        reader.read("s", "b")
        reader.read("d", "")
        writer.write("s")
        for n in range(100):
            writer.send("a", b"x" * 1000, timeout=PATIENCE)
            writer.mailbox("absent", "s", b"%d" % (n % 10))
        writer.sync()
        found = values(broker.metrics())
        assert found["malamute_clients"] == 2
        assert found["malamute_publishers"] == 1
        assert found["malamute_streams[simple]"] == found["malamute_streams[durable]"] == 1
        assert found["malamute_subscriptions"] == 3
        assert found["malamute_held_deliveries"] == 100, "the reader gave no credit"
        assert 100_000 < found["malamute_queue_bytes"] < 130_000
        assert found["malamute_letters[mailbox]"] == found["malamute_letter_bytes[mailbox]"] == 10
        assert found["malamute_lost_letters_total"] == 90
        assert found["malamute_received_messages_total"] >= 200 + 7
        assert 100_000 < found["malamute_received_bytes_total"] < 120_000
        assert found["malamute_sent_messages_total"] >= 6
        reader.give_credit(100)
        for _ in range(100):
            reader.receive()
        after = values(broker.metrics())
        assert after["malamute_held_deliveries"] == after["malamute_queue_bytes"] == 0
        assert after["malamute_sent_bytes_total"] - found["malamute_sent_bytes_total"] > 100_000
    site = MlpSite()
    stranger = site.connect(Peer, broker)
    stranger.socket.send(b"nonsense")
    stranger.ask(commands.Ping())
    site.close()
    after = values(broker.metrics())
    assert after["malamute_malformed_frames_total"] == after["malamute_refused_commands_total"] == 1
    assert after["malamute_clients"] == 0


def test_prometheus_can_read_it(broker: Broker) -> None:
    lines = page(broker, "/metrics").splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in samples), [line for line in samples if not SAMPLE.match(line)]
    types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    assert types == {name: "counter" if name.endswith("_total") else "gauge" for name in NAMES}
    without_samples = {"malamute_streams"}  # by stream, of which there is none
    assert {line.partition(" ")[0].partition("{")[0] for line in samples} == NAMES - without_samples
    assert len([line for line in lines if line.startswith("# HELP")]) == len(types)


def test_no_digit_and_no_label_is_lost_on_the_way_to_prometheus() -> None:
    labels = (("engine", 'a"b\\c\nd'),)
    metrics = [
        Metric("malamute_sent_bytes_total", "bytes", (((), 1234567890123.0),)),
        Metric("malamute_streams", "by engine", ((labels, 7654321.0), ((("engine", "durable"),), 0.0))),
        Metric("malamute_empty", "without samples", ()),
    ]
    families = text_string_to_metric_families(exposition(metrics))
    found = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
    assert found == [(m.name, dict(labels), value) for m in metrics for labels, value in m.samples]


def test_without_the_library_a_broker_that_serves_metrics_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"prometheus-client: pip install"):
        Broker(BrokerSettings("tcp://127.0.0.1:*", metrics="127.0.0.1:0")).start()
    with Broker(BrokerSettings("tcp://127.0.0.1:*")) as broker:
        assert broker.metrics(), "in process, nothing needs it"


@pytest.mark.spec("S3", "S4")
def test_clients_and_streams_are_listed_also_over_http(broker: Broker) -> None:
    with client(broker, "a") as a, client(broker, "") as b:
        a.read("s", "x")
        b.write("s")
        b.write("d1")
        listed = json.loads(page(broker, "/clients"))
        assert sorted(one["address"] for one in listed) == ["", "a"]
        by_name = {one["address"]: one for one in listed}
        assert by_name["a"]["reads"] == {"s": 1}
        assert by_name[""]["writes"] == "d1"
        assert "SEQUENCE" in by_name["a"]["features"]
        assert all(0 <= one["silent"] < PATIENCE for one in listed)
        streams = [tuple(s[key] for key in ("stream", "engine", "stored", "readers", "writers"))
                   for s in json.loads(page(broker, "/streams"))]  # fmt: skip
        assert streams == [("d1", "durable", True, 0, 1), ("s", "simple", False, 1, 0)]
    assert broker.client_list() == []
    assert [s["readers"] for s in broker.stream_list()] == [0, 0], "streams survive their clients"


def test_what_is_not_there_is_not_found_and_what_a_peer_says_ends_nothing(broker: Broker) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        page(broker, "/secrets")
    caught.value.close()
    host, port = (broker.metrics_url or "").removeprefix("http://").split(":")
    for nonsense in (b"", b"GET", b"\0\xff\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(port)), PATIENCE) as raw:
            raw.sendall(nonsense)
    assert "malamute_clients" in page(broker, "/metrics")


def test_a_broker_that_does_not_run_says_so() -> None:
    broker = Broker(BrokerSettings("tcp://127.0.0.1:*"))
    with pytest.raises(BackgroundTaskFailed, match="does not run"):
        broker.metrics()
    with broker:
        assert broker.metrics_url is None
        assert broker.metrics()
    with pytest.raises(BackgroundTaskFailed, match="does not run"):
        broker.client_list()


def test_the_command_says_how_it_is(tmp_path: Path) -> None:
    conf = tmp_path / "broker.toml"
    conf.write_text('[broker]\nbind = "tcp://127.0.0.1:*"\nmetrics = "127.0.0.1:0"\nreport = "200ms"\n')
    said: list[str] = []
    stop = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("broker: "):
            stop.set()

    serve(conf_file=conf, say=say, stop=stop)
    assert re.match(r"metrics: http://127.0.0.1:\d+/metrics", said[1])
    found = summary([Metric("malamute_lost_sends_total", "", (((), 3.0),)), Metric("malamute_x", "", ())])
    assert found == "lost sends 3"


def test_a_look_that_fails_is_a_line_in_the_log_and_the_next_one_is_served(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    failing = [ConnectionResetError("the peer hung up")]

    def page() -> str:
        if failing:
            raise failing.pop()
        return "fine\n"

    server = MetricsServer("127.0.0.1:0", {"/metrics": (CONTENT_TYPE, page)})
    try:
        with pytest.raises(ConnectionError):
            urllib.request.urlopen(f"{server.url}/metrics", timeout=PATIENCE)
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=PATIENCE) as answer:
            assert answer.read() == b"fine\n"
    finally:
        server.close()
    assert "from 127.0.0.1 failed: the peer hung up" in caplog.text
    assert "Traceback" not in capfd.readouterr().err
