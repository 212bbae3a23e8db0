"""The driver of a streaming write without Spark: micro-batches, tasks that are tried again, commits, a checkpoint.

The sink's own code plans, writes each partition and commits, each task and each commit in a process of its own, as in
Spark's Python workers. What Spark does is done here: a task gets four attempts, and a batch that was not checkpointed
runs again with its number, and so with its ids.

All processes are forks of one that has imported everything, so that a start costs nothing.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

from mama_spark.spark.sink.data_source import MamaPubStreamWriter, stream_writer
from mama_spark.spark.sink.job import PartitionReport, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from pyspark.sql.types import BinaryType, StringType, StructType

from tests.campaign.rows import Amount, of_partition

ATTEMPTS = 4
QUERY = "campaign-query"
BEFORE_COMMIT = "before the commit"
#: A process without threads makes the others; the driver has none, so its tasks may be plain forks.
SERVER = multiprocessing.get_context("forkserver")
#: With what the product imports late: each task would import it anew, which takes longer than its rows.
SERVER.set_forkserver_preload([
    __name__, "deltalake", "nats", "pandas", "pyarrow.fs", "pyarrow.parquet",
    "mama_spark.malamute.bridge", "mama_spark.nats.ledger", "mama_spark.nats.publish.bridge",
    "mama_spark.nats.publish.fast_ingest", "mama_spark.nats.read.logs",
    "mama_spark.nats.discovery.bridge", "mama_spark.flightlog.commit", "mama_spark.flightlog.staging",
])  # fmt: skip
FORK = multiprocessing.get_context("fork")


def task(amount: Amount, job: SinkJob, info: TaskInfo, report: Path) -> None:
    """One attempt at one partition, in a process of its own."""
    assert info.batch_id is not None
    done = publish_partition(job, info, of_partition(amount, info.batch_id, info.partition))
    report.write_bytes(pickle.dumps(done))


def run_tasks(
    start: Callable[[int, int], tuple[BaseProcess, Path]], partitions: int
) -> tuple[list[PartitionReport], bool]:
    """The reports of the tasks of a micro-batch, and whether all have succeeded.

    :param start: begins an attempt at a partition
    """
    reports: list[PartitionReport] = []
    waiting = {partition: start(partition, 0) for partition in range(partitions)}
    for attempt in range(ATTEMPTS):
        failed = []
        for partition, (process, report) in waiting.items():
            process.join()
            if process.exitcode:
                failed.append(partition)
            else:
                reports.append(pickle.loads(report.read_bytes()))
        if not failed:
            return reports, True
        if attempt + 1 < ATTEMPTS:
            waiting = {partition: start(partition, attempt + 1) for partition in failed}
    return reports, False


def commit(job: SinkJob, reports: Sequence[PartitionReport], number: int, complete: bool) -> None:
    """In a process of its own; a batch that is not complete is aborted."""
    writer = MamaPubStreamWriter(job)
    if complete:
        writer.commit([*reports], number)
    else:
        writer.abort([*reports, None], number)


def plan(options: dict[str, str], path: Path) -> None:
    """In a process of its own: the job, pickled."""
    schema = StructType().add("topic", StringType()).add("value", BinaryType())
    path.write_bytes(pickle.dumps(stream_writer(options, schema, False).job))


def apart(target: Any, *args: Any) -> None:
    process = FORK.Process(target=target, args=args)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{target.__name__} failed")


def run_batches(
    options: dict[str, str],
    folder: Path,
    stream_run: str,
    batches: int,
    partitions: int,
    work: Callable[[SinkJob, TaskInfo, Path], None],
    reached: Callable[[str], object] = lambda place: None,
) -> None:
    """All batches that the checkpoint does not have.

    :param options: of mamapub; ``folder``: for the checkpoint
    :param work: of a task, see :func:`task`
    :param reached: is told where the driver has come to
    :raises RuntimeError: a task failed too often, or a commit
    """
    planned = folder / f"job-{stream_run}"
    apart(plan, options, planned)
    job = pickle.loads(planned.read_bytes())
    for number in range(batches):
        checkpoint = folder / f"committed-{number}"
        if checkpoint.exists():
            continue

        def start(partition: int, attempt: int, number: int = number) -> tuple[BaseProcess, Path]:
            info = TaskInfo(partition, attempt, QUERY, number, stream_run, False)
            report = folder / f"report-{stream_run}-{number}-{partition}-{attempt}"
            process = FORK.Process(target=work, args=(job, info, report))
            process.start()
            return process, report

        reports, complete = run_tasks(start, partitions)
        reached(BEFORE_COMMIT)
        apart(commit, job, reports, number, complete)
        if not complete:
            raise RuntimeError(f"a task of batch {number} failed {ATTEMPTS} times")
        checkpoint.touch()
        reached("a checkpoint")


def own_session(output: Path, level: int = logging.WARNING) -> None:
    """What a driver begins with: a session of its own, which prints into a file."""
    os.setsid()
    out = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    logging.basicConfig(format="%(asctime)s %(process)d %(message)s", level=level)


def drive(options: dict[str, str], folder: Path, amount: Amount, output: Path) -> None:
    """The whole life of a driver."""
    own_session(output)
    run_batches(options, folder, uuid4().hex, amount.batches, amount.partitions, partial(task, amount))
