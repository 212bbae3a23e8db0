"""The simulations by name."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import NamedTuple

from . import brokers, flight_logs


class Simulation(NamedTuple):
    """One thing that there are more and more of.

    :ivar grows: the value whose growth is told; None: all are for one row
    :ivar columns: measured value -> what it is, for people
    """

    title: str
    unit: str
    sizes: tuple[int, ...]
    grows: str | None
    measure: Callable[[int], dict[str, float]]
    columns: dict[str, str]


SIMULATIONS = {
    "partition_reports": Simulation(
        "Partition reports that are committed at once",
        "partitions", (1, 10, 100, 1_000, 2_000), "commit_s", flight_logs.partition_reports,
        {"commit_s": "processor s of the commit", "report": "bytes of a report", "entry": "bytes a part in the log"},
    ),
    "micro_batches": Simulation(
        "Micro-batches, merged every hundred (`flightLogCompactEvery=100`)",
        "micro-batches", (1, 10, 100, 1_000, 10_000), "commit_ms", flight_logs.micro_batches,
        {
            "commit_ms": "processor ms of the next commit", "checkpoint_s": "processor s of a checkpoint",
            "checkpoint_mb": "MB of it", "log_mb": "MB of the Delta log",
        },
    ),
    "billion_rows": Simulation(
        "Rows of a flight log in parts of 10,000, not merged",
        "rows", (1_000_000, 10_000_000, 100_000_000, 1_000_000_000), "commit_ms", flight_logs.billion_rows,
        {
            "files": "files", "commit_ms": "processor ms of the next commit",
            "checkpoint_s": "processor s of a checkpoint", "checkpoint_mb": "MB of it",
        },
    ),
    "flight_log_rows": Simulation(
        "Rows of a flight log",
        "rows", (10_000, 100_000, 1_000_000), "write_s", flight_logs.flight_log_rows,
        {"log_mb": "MB", "row": "bytes a row", "write_s": "processor s to write them"},
    ),
    "topics": Simulation(
        "Topics of a write of 200,000 rows",
        "topics", (1_000, 10_000, 100_000), None, brokers.topics,
        {
            "client_us": "processor µs a row, executor", "server_us": "processor µs a row, server",
            "server_mb": "MB of memory, server",
        },
    ),
    "replicas": Simulation(
        "Replicas of a stream on three servers, a write of 200,000 rows",
        "replicas", (1, 3), None, brokers.replicas,
        {
            "client_us": "processor µs a row, executor", "server_us": "processor µs a row, all servers",
            "leader_us": "that of the leader", "rate": "rows a second, all on these cores",
        },
    ),
    "sources": Simulation(
        "Sources that are announced",
        "sources", (100, 1_000, 10_000), "image_s", brokers.sources,
        {
            "announce_us": "processor µs of an announcement", "image_s": "processor s of an image",
            "server_s": "processor s of the server for both", "stored_mb": "MB in streams",
            "offset": "bytes of a checkpoint",
        },
    ),
    "streams": Simulation(
        "Streams of a set",
        "streams", (10, 100, 1_000), "plan_s", brokers.streams,
        {
            "write_s": "processor s of a task with 10,000 rows",
            "plan_s": "processor s of the driver for a batch that is read",
            "offset": "bytes of a checkpoint", "server_mb": "MB of memory, server",
        },
    ),
}  # fmt: skip


def measure(name: str, size: int) -> dict[str, float]:
    """In a process of its own, whose memory it adds."""
    found = SIMULATIONS[name].measure(size)
    return {"size": size, **found, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
