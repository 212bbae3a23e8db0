"""The quick starts of README.md run as they stand, against a broker like that of ``mama serve``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.brokers import BrokerProcess
from mama_spark.testing.servers import Admin
from mama_spark.testing.sink_runs import counts, flights

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


def run_script(code: str, folder: Path) -> str:
    script = folder / "quick_start.py"
    script.write_text(code.replace("/tmp/mama", str(folder)))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_quick_starts_run_as_they_stand(nats_server: NatsServer, tmp_path: Path) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("DEMO", ["demo.>"], allow_batched=True)

    def run(code: str) -> str:
        return run_script(code.replace("nats://127.0.0.1:4222", nats_server.url), tmp_path)

    streaming, seconds = SECONDS.subn(ROWS, snippet("streaming"))
    assert seconds == 1
    run(snippet("batch") + streaming)
    shown = run(snippet("flight log"))  # a process of its own: Delta's jars are for a JVM to be started
    assert re.search(r"\|\s*acked\|\s*NULL\|\s*1000\|", shown), shown
    assert counts(flights(tmp_path / "flight_log"), "event") == {"acked": 1000}
    assert set(counts(flights(tmp_path / "tick_log"), "event")) == {"acked"}
    shown = run(snippet("discovery") + snippet("messages"))
    cells = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in shown.splitlines()]
    for cell in (
        ("image_end", "image_end", "NULL", "NULL", "NULL"),
        ("source", "online", "orders-desk", "ONLINE", "NULL"),
        ("topic", "PUBLISH_CREATE", "orders-desk", "NULL", "demo.orders.new"),
        ("source", "offline", "orders-desk", "OFFLINE", "NULL"),
    ):
        assert cell in cells, shown
    assert re.search(r'\|demo.orders.\w+ *\|\{"order_id":', shown), shown


def test_the_quick_start_of_malamute_runs_as_it_stands(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        shown = run_script(snippet("malamute").replace("mlp://127.0.0.1:9999", broker.url), tmp_path)
    assert "500 orders" in shown
    assert counts(flights(tmp_path / "malamute_log"), "ack_level") == {"stored": 1000}
