"""Publishing by number of topics, each row to another one in turn: with ids, and an acknowledgement a message."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from mama_spark.nats.server.nats_server import NatsServer

from bench.stream_sets import publish

TITLE = "Topics of a write of 200,000 rows"
UNIT = "topics"
SIZES = (1_000, 10_000, 100_000)
COLUMNS = {
    "client_us": "processor µs a row, executor", "server_us": "processor µs a row, server",
    "server_mb": "MB of memory, server",
}  # fmt: skip
GROWS = None
ROWS = 200_000


def measure(topics: int) -> dict[str, float]:
    with TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        process = psutil.Process(server.pid)
        before = sum(process.cpu_times()[:2])
        spent = publish(server.url, {}, 0, ROWS, topics)
        served = sum(process.cpu_times()[:2]) - before
        memory = process.memory_info().rss / 1e6
        return {"client_us": 1e6 * spent / ROWS, "server_us": 1e6 * served / ROWS, "server_mb": memory}
