"""The quick starts of README.md run as they stand, against a broker like that of ``mama serve``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.nats_servers import Admin
from tests.support.sink_harness import counts, flights

README = Path(__file__).parents[2] / "README.md"


def snippet(name: str) -> str:
    found = re.search(rf"<!-- run: {name} -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None, f"README has no snippet {name!r}"
    return found[1]


@pytest.mark.parametrize("name", ["batch", "streaming", "flight log", "discovery", "messages", "malamute"])
def test_snippets_are_short(name: str) -> None:
    assert len(snippet(name).strip().splitlines()) <= 25


#: The stream runs for some seconds, in which a busy machine may publish nothing: the test waits for its rows instead.
SECONDS = re.compile(r"query.awaitTermination\(10\).*")
ROWS = """
while not (query.lastProgress and query.lastProgress.numInputRows):
    query.awaitTermination(1)
"""


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str, str, str], str]:
    """Run code in the session of the tests, with another place for that of the page; what it shows."""

    def run(code: str, written: str, url: str) -> str:
        code = code.replace("/tmp/mama", str(tmp_path)).replace(written, url)
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run


def test_the_quick_starts_run_as_they_stand(
    run: Callable[[str, str, str], str], nats_server: NatsServer, tmp_path: Path
) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("DEMO", ["demo.>"], allow_batched=True)
    streaming, seconds = SECONDS.subn(ROWS, snippet("streaming"))
    assert seconds == 1
    shown = {
        name: run(code, "nats://127.0.0.1:4222", nats_server.url)
        for name, code in (
            ("batch", snippet("batch")),
            ("streaming", streaming),
            ("flight log", snippet("flight log")),
            ("discovery", snippet("discovery")),
            ("messages", snippet("messages")),
        )
    }
    assert re.search(r"\|\s*acked\|\s*NULL\|\s*1000\|", shown["flight log"]), shown
    assert counts(flights(tmp_path / "flight_log"), "event") == {"acked": 1000}
    assert set(counts(flights(tmp_path / "tick_log"), "event")) == {"acked"}
    cells = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in shown["discovery"].splitlines()]
    for cell in (
        ("image_end", "image_end", "NULL", "NULL", "NULL"),
        ("source", "online", "orders-desk", "ONLINE", "NULL"),
        ("topic", "PUBLISH_CREATE", "orders-desk", "NULL", "demo.orders.new"),
        ("source", "offline", "orders-desk", "OFFLINE", "NULL"),
    ):
        assert cell in cells, shown
    assert re.search(r'\|demo.orders.\w+ *\|\{"order_id":', shown["messages"]), shown


def test_the_quick_start_of_malamute_runs_as_it_stands(run: Callable[[str, str, str], str], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        shown = run(snippet("malamute"), "mlp://127.0.0.1:9999", broker.url)
    assert "500 orders" in shown
    assert counts(flights(tmp_path / "malamute_log"), "ack_level") == {"stored": 1000}
