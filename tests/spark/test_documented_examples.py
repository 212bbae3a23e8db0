"""The examples of README, how-to guides and tutorial run as written, against a broker like that of ``mama serve``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from mama_spark.cli.main import main
from mama_spark.nats.commands.serve import add_demo_stream
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import SparkSession

from tests.support.malamute.broker_process import BrokerProcess
from tests.support.nats.buckets import by_nats_py, make
from tests.support.nats.nats_servers import Admin
from tests.support.spark.sink_harness import counts, flights
from tests.support.spark.subscribe_harness import store

ROOT = Path(__file__).parents[2]
URL = "nats://127.0.0.1:4222"  #: in the pages
#: What runs here; of the others see tests/live: discovery/test_discovery_doc.py, test_prometheus.py.
EXAMPLES = {
    "batch", "streaming", "sorted", "flight log", "discovery", "messages", "into delta", "current values", "malamute",
    "once", "dead letters", "read dead letters", "repair", "write a bucket", "follow a bucket",
}  # fmt: skip
PAGES = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TUTORIAL = (ROOT / "docs" / "tutorial" / "first-delivery-report.md").read_text(encoding="utf-8")


def snippet(name: str) -> str:
    (found,) = re.findall(rf"<!-- run: {name} -->\n```python\n(.*?)```", PAGES, re.DOTALL)
    return str(found)


def test_every_marked_example_is_run_by_a_test() -> None:
    assert {*re.findall(r"<!-- run: (.*?) -->", PAGES)} == EXAMPLES | {"announce", "permissions", "prometheus"}


#: A stream runs for some seconds, in which a busy machine may publish nothing: the test waits for its rows instead.
SECONDS = re.compile(r"query.awaitTermination\(60\).*")
ROWS = """
while not (query.lastProgress and query.lastProgress.numInputRows):
    query.awaitTermination(1)
"""


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str, str, str], str]:
    """Run code in the session of the tests, with another place for that of the page; what it shows."""

    def run(code: str, written: str, url: str) -> str:
        code = code.replace("/tmp/mama", str(tmp_path)).replace(written, url)
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run


def test_the_examples_on_nats_run_as_written(
    run: Callable[[str, str, str], str], nats_server: NatsServer, tmp_path: Path
) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("DEMO", ["demo.>"], allow_batched=True)
        admin.create_stream("KV_settings", ["$KV.settings.>"], max_msgs_per_subject=1)
        store(admin, "KV_settings", [("$KV.settings.device.mode", b"on", None)])
    streaming, seconds = SECONDS.subn(ROWS, snippet("streaming") + snippet("sorted"))
    assert seconds == 2
    shown = {
        name: run(code, URL, nats_server.url)
        for name, code in (
            ("batch", snippet("batch")),
            ("streaming", streaming),
            ("flight log", snippet("flight log")),
            ("discovery", snippet("discovery")),
            ("messages", snippet("messages") + snippet("into delta")),
            ("current values", snippet("current values")),
            ("once", snippet("once")),
            ("dead letters", snippet("dead letters") + snippet("read dead letters") + snippet("repair")),
        )
    }
    assert re.search(r"\|\s*acked\|\s*NULL\|\s*1000\|", shown["flight log"]), shown
    assert counts(flights(tmp_path / "flight_log"), "event") == {"acked": 1000}
    assert set(counts(flights(tmp_path / "tick_log"), "event")) == {"acked"}
    cells = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in shown["discovery"].splitlines()]
    for cell in (
        ("image_end", "image_end", "NULL", "NULL", "NULL"),
        ("source", "online", "orders-job", "ONLINE", "NULL"),
        ("topic", "PUBLISH_CREATE", "orders-job", "NULL", "demo.orders.new"),
        ("source", "offline", "orders-job", "OFFLINE", "NULL"),
    ):
        assert cell in cells, shown
    assert re.search(r'\|demo.orders.\w+ *\|\{"order_id":', shown["messages"]), shown
    assert re.search(r"\|device.mode *\|on *\|1 *\|", shown["current values"]), shown
    orders = DeltaTable(str(tmp_path / "orders_table")).to_pyarrow_table()["order_id"].to_pylist()
    assert {*range(1000)} <= {*orders}
    with Admin(nats_server.url) as admin:
        messages = admin.messages("DEMO")
    stored = [message.topic for message in messages]
    ticks = [
        int(message.payload)
        for message in messages
        if message.headers.get("Nats-Msg-Id", [""])[0].startswith("ticks-job")
    ]
    assert ticks == sorted(ticks) != []
    assert len([topic for topic in stored if topic.startswith("demo.once.")]) == 100
    assert counts(flights(tmp_path / "once_log", committed=None), "committed") == {True: 100, False: 100}
    assert re.search(r"\|2 +\|smith +\|demo.orders.\* *\|a topic with.*BAD_SYMBOL", shown["dead letters"]), shown
    assert (stored.count("demo.orders.good"), stored.count("demo.orders.smith")) == (2, 1)
    assert stored.count("demo.dead_letters") == 1
    (dead,) = DeltaTable(str(tmp_path / "dead_letters")).to_pyarrow_table().to_pylist()
    assert (dead["topic"], dead["status"], dead["committed"]) == ("demo.orders.*", "BAD_SYMBOL", True)


def test_the_examples_of_a_bucket_run_as_written(
    run: Callable[[str, str, str], str], nats_server: NatsServer, tmp_path: Path
) -> None:
    make(nats_server.url, bucket="devices")
    by_nats_py(nats_server.url, lambda kv: kv.put("plant.old", b"left"), "devices")
    run(snippet("write a bucket"), URL, nats_server.url)
    shown = run(
        "from pyspark.sql import SparkSession\nspark = SparkSession.getActiveSession()\n" + snippet("follow a bucket"),
        URL,
        nats_server.url,
    )
    cells = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in shown.splitlines()]
    assert [cell[:2] for cell in cells if cell and cell[0].startswith("plant")] == [
        ("plant.pump", "on"), ("plant.valve", "open"),
    ], shown  # fmt: skip
    assert main(["check", nats_server.url, "-o", "bucket=devices", "--table", str(tmp_path / "devices")]) == 0


def test_the_example_on_malamute_runs_as_written(run: Callable[[str, str, str], str], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        shown = run(snippet("malamute"), "mlp://127.0.0.1:9999", broker.url)
    assert "500 orders" in shown
    assert counts(flights(tmp_path / "malamute_log"), "ack_level") == {"stored": 1000}


def test_the_tutorial_runs_block_by_block(
    run: Callable[[str, str, str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python blocks in the session of the tests, ``mama flights`` as a command; installation and broker are here."""
    shown: list[str] = []
    with NatsServer(tmp_path / "nats") as server:
        add_demo_stream(server.url)
        for language, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```", TUTORIAL):
            if language == "python":
                shown.append(run(block, URL, server.url))
            elif block.startswith("mama flights"):
                assert main(shlex.split(block.replace("/tmp/mama", str(tmp_path)))[1:]) == 0
                shown.append(capsys.readouterr().out)
            elif block.startswith("rows "):  # what the report shows
                assert block.strip() in shown[-1]
            else:
                assert block.startswith(("python3 -m venv", "pip install", "mama serve")), f"nothing runs this: {block}"
    published, report, failed, failures, joined, read = shown
    assert "BAD_SYMBOL" in failures
    assert [number in joined for number in ("2000", "2001", "2002", "2003")] == [False, True, True, True]
    assert "1001 messages" in read
    assert counts(flights(tmp_path / "tutorial_log"), "event") == {"acked": 1001, "completed_exceptionally": 3}
    assert (published, failed) == ("", "")
    assert "1,000 acked" in report
