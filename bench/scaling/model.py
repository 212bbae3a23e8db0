"""The cluster that a rate of rows needs, from what was measured: one message of 100 bytes a row, with ids. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.result import Result

#: Messages a second that one member of a stream set is given: less than one stream takes alone.
A_STREAM = 125_000
#: What a member costs its server more than a stream alone (``python -m bench.stream_sets``).
SET = 1.06
#: Seconds of a micro-batch, and rows of one partition in it, which are one part of the flight log.
MICRO_BATCH, PARTITION = 10, 250_000
DAY = 86_400
#: Micro-batches of which Spark keeps the offsets (``spark.sql.streaming.minBatchesToRetain``).
KEPT_OFFSETS = 100
#: Processor cores of one server, of which half is for what is not publishing.
SERVER_CORES = 16


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds of a processor, and bytes.

    :ivar publish, serve: a row, of executors and of the server that leads its stream
    :ivar replicated: a row, of all servers, with three replicas, where another server takes it from the executor
    :ivar read: a row that is read, of executors
    :ivar report: a partition, of the commit on the driver
    :ivar file: a file that the table has, of each commit
    :ivar file_memory: the same in bytes of memory
    :ivar merged: a micro-batch of one file that was merged since, of each commit
    :ivar log: bytes of a row of the flight log
    :ivar source: bytes in streams of a source that is announced
    :ivar offset: bytes of a stream in an offset of a query that reads it
    """

    publish: float
    serve: float
    replicated: float
    read: float
    report: float
    file: float
    file_memory: float
    merged: float
    log: float
    source: float
    offset: float

    @classmethod
    def of(cls, rates: Result, scaling: Result) -> Coefficients:
        """
        :param rates: of ``make bench``
        :param scaling: of ``bench.scaling``
        """

        def a_row(name: str, value: str) -> float:
            runs = [float(run[value]) for run in rates["runs"] if run["name"] == name and run["size"] == 100]
            return statistics.median(runs) / 1e6

        measured = scaling["measured"]
        files, rows = measured["billion_rows"], measured["flight_log_rows"]
        sources, streams = measured["sources"][-1], measured["streams"][-1]
        return cls(
            a_row("sink-dedup", "client_us"),
            SET * a_row("sink-dedup", "server_us"),
            SET * measured["replicas"][-1]["server_us"] / 1e6,
            a_row("mamasub", "client_us"),
            measured["partition_reports"][-1]["commit_s"] / measured["partition_reports"][-1]["size"],
            _slope(files, "commit_ms", "files") / 1e3,
            _slope(files, "memory_mb", "files") * 1e6,
            _slope(measured["micro_batches"], "commit_ms", "size") / 1e3,
            rows[-1]["row"],
            sources["stored_mb"] * 1e6 / sources["size"],
            streams["offset"] / streams["size"],
        )


def _slope(measured: list[dict[str, float]], value: str, of: str) -> float:
    """How much more of a value there is for one more of another, over the largest sizes."""
    first, last = measured[-2:]
    return (last[value] - first[value]) / (last[of] - first[of])


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """What a rate needs. Times are seconds of a processor.

    :ivar replicated_cores: of the servers, with three replicas
    :ivar checkpoint: bytes of offsets in the checkpoint of a query that reads all
    """

    rate: int
    streams: int
    server_cores: float
    replicated_cores: float
    publish_cores: float
    read_cores: float
    log_bytes_a_day: float
    checkpoint: float
    partitions: int


def cluster(c: Coefficients, rate: int) -> ClusterSize:
    partitions = max(1, round(rate * MICRO_BATCH / PARTITION))
    streams = max(1, round(rate / A_STREAM))
    return ClusterSize(
        rate, streams, rate * c.serve, rate * c.replicated, rate * c.publish, rate * c.read, rate * c.log * DAY,
        streams * c.offset * KEPT_OFFSETS, partitions,
    )  # fmt: skip


def limits(c: Coefficients) -> list[tuple[float, str]]:
    """Rows a second up to which each thing suffices, and its name for people; the lowest first."""
    one_file_a_day = PARTITION / DAY  # rows a second
    found = [
        (float(A_STREAM), "one stream"),
        (SERVER_CORES / 2 / c.serve, f"one server of {SERVER_CORES} cores, half of them for publishing"),
        (
            one_file_a_day * MICRO_BATCH / c.file,
            f"one flight log without merging: after a day, a commit takes the {MICRO_BATCH} s of a micro-batch",
        ),
        (
            one_file_a_day * 1e9 / c.file_memory,
            "one flight log without merging: after a day, a commit needs 1 GB of memory",
        ),
        (
            one_file_a_day / 7 * MICRO_BATCH / c.merged,
            f"one merged flight log with a retention of a week: a commit takes {MICRO_BATCH} s",
        ),
        (
            one_file_a_day * MICRO_BATCH / c.merged,
            f"one merged flight log with a retention of a day: a commit takes {MICRO_BATCH} s",
        ),
        (PARTITION / c.report, f"the driver: the reports of a micro-batch alone take {MICRO_BATCH} s"),
    ]
    return sorted(found)
