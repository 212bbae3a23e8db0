"""A streaming write with ``exactlyOnce`` whose driver, tasks and broker are killed at chosen moments, over and over.

As :mod:`.driver`, without Spark: the sink's own code in forks. What is different: rows occur several times, each run
may have another number of partitions, each attempt may see its rows in another order, and the moment at which a process
kills itself is a call of the product, so that each moment is met.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn
from uuid import NAMESPACE_OID, uuid5

import psutil
import pyarrow as pa
from mama_spark.registry import batch_ledger, publisher_bridge
from mama_spark.spark.sink.job import SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.testing.waiting import eventually

from tests.campaign.driver import BEFORE_COMMIT, SERVER, own_session, run_batches
from tests.campaign.oracle import Row

_ROWS_OF_A_BATCH = 100
#: Where a process kills itself. The first five kill the driver and all that it has started.
BEFORE_MARKER, BEFORE_FIRST, MIDDLE, AFTER_LAST = (
    "before the marker", "before the first message", "in mid-partition", "after the last acknowledgement",
)  # fmt: skip
WORKER, SERVER_KILLED = "worker in mid-partition", "server in mid-partition"
POINTS = (BEFORE_MARKER, BEFORE_FIRST, MIDDLE, AFTER_LAST, BEFORE_COMMIT, WORKER)


@dataclass(frozen=True)
class Plan:
    """What a driver does.

    :ivar partitions: of each run, one after another, and from the first on again
    :ivar points: of each run; a run behind the last one is not killed
    :ivar shuffled: each attempt sees its rows in another order
    :ivar copies: how often each row occurs, about
    :ivar signal: a file that a task makes when the server shall be killed
    """

    options: dict[str, str]
    folder: str
    topic: str
    batches: int = 4
    rows: int = 300
    partitions: tuple[int, ...] = (2,)
    points: tuple[str, ...] = ()
    shuffled: bool = False
    copies: int = 1
    seed: int = 0
    signal: str = ""

    def rows_of(self, batch: int) -> list[Row]:
        """All rows of a batch, in the order of the source."""
        chance = random.Random(f"{self.seed} {batch}")
        numbers = [n // self.copies for n in range(self.rows)]
        if self.copies > 1:
            chance.shuffle(numbers)

        def payload(batch: int, n: int) -> bytes:
            """Begins with its partition, of the first run."""
            return b"%d.%03d.%07d.%s" % (n * self.partitions[0] // self.rows, batch, n, b"x" * (n % 50))

        return [(f"{self.topic}.{n % 3}", payload(batch, n)) for n in numbers]

    def of_partition(self, info: TaskInfo, partitions: int) -> Iterator[pa.RecordBatch]:
        assert info.batch_id is not None
        rows = self.rows_of(info.batch_id)
        n = len(rows)
        mine = rows[n * info.partition // partitions : n * (info.partition + 1) // partitions]
        if self.shuffled:
            random.Random(f"{self.seed} {info}").shuffle(mine)
        for first in range(0, len(mine), _ROWS_OF_A_BATCH):
            topics, values = zip(*mine[first : first + _ROWS_OF_A_BATCH], strict=True)
            yield pa.record_batch({"topic": pa.array(topics, pa.string()), "value": pa.array(values, pa.binary())})

    def expected(self) -> Counter[Row]:
        return Counter(row for batch in range(self.batches) for row in self.rows_of(batch))


# --- in the driver and its tasks --------------------------------------------------------------------------------


def _dies(whole: bool) -> Callable[[], None]:
    return functools.partial(_die, whole=whole)


def _die(*, whole: bool) -> NoReturn:
    if whole:
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _at(kind: type, method: str, call: int, strike: Callable[[], None], *, stream: str | None = None) -> None:
    """Strike before the ``call``-th call of a method.

    :param stream: only calls of a bridge that publishes there count: the markers may go through one, too
    """
    real, calls = getattr(kind, method), [0]

    @functools.wraps(real)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += stream is None or args[0].settings.stream == stream
        if calls[0] == call:
            strike()
        return real(*args, **kwargs)

    setattr(kind, method, counted)


def _arm(point: str, chance: random.Random, job: SinkJob, file: str) -> None:
    """In a task that is to die."""
    ledger, bridge, sends = batch_ledger(job.options), publisher_bridge(job.options), chance.randint(2, 6)
    if point == BEFORE_MARKER:
        _at(type(ledger), "set_marker", chance.randint(1, 2), _dies(whole=True))
    elif point == BEFORE_FIRST:
        _at(type(bridge), "send", 1, _dies(whole=True), stream=job.options.stream)
    elif point in (MIDDLE, WORKER):
        _at(type(bridge), "send", sends, _dies(whole=point == MIDDLE), stream=job.options.stream)
    elif point == SERVER_KILLED:
        _at(type(bridge), "send", sends, Path(file).touch, stream=job.options.stream)


def task(plan: Plan, partitions: int, point: str, job: SinkJob, info: TaskInfo, report: Path) -> None:
    """One attempt at one partition, in a process of its own."""
    chance = random.Random(f"{plan.seed} {info}")
    if info.attempt == 0 and info.partition == 0:
        _arm(point, chance, job, plan.signal)
    done = publish_partition(job, info, plan.of_partition(info, partitions))
    if point == AFTER_LAST and info.partition == partitions - 1:
        _die(whole=True)
    report.write_bytes(pickle.dumps(done))


def drive(given: Plan, output: Path, number: int) -> None:
    """The life of a driver, in a session of its own.

    :param number: of the run
    """
    own_session(output, logging.INFO)
    run = uuid5(NAMESPACE_OID, f"{given.topic} {given.seed} {number}").hex
    point = given.points[number] if number < len(given.points) else ""
    partitions = given.partitions[number % len(given.partitions)]
    logging.info("run %d, %d partitions, killed %s", number, partitions, point or "never")

    def reached(place: str) -> None:
        if point == place or (point and place != BEFORE_COMMIT):
            _die(whole=True)

    work = functools.partial(task, given, partitions, point)
    run_batches(given.options, Path(given.folder), run, given.batches, partitions, work, reached)


# --- in the test ------------------------------------------------------------------------------------------------


def repeat_until_done(given: Plan, *, pause: float, most: int = 12, timeout: float = 240.0) -> int:
    """Start the driver until all batches are committed; how often that was.

    :param pause: seconds between its end and the next start
    """
    output = Path(given.folder) / "driver.out"
    for run in range(most):
        process = SERVER.Process(target=drive, args=(given, output, run))
        process.start()
        process.join(timeout)
        assert process.exitcode is not None, f"not done in {timeout:g} s: {tail(output)}"
        if process.exitcode == 0:
            return run + 1
        eventually(functools.partial(_group_is_empty, process), "its tasks end", timeout)
        time.sleep(pause)
    raise AssertionError(f"not done in {most} runs: {tail(output)}")


def _group_is_empty(process: BaseProcess) -> bool:
    """Whether no process of the driver's group is alive; one that only waits to be collected is not."""
    for one in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(one.pid) == process.pid and one.info["status"] != psutil.STATUS_ZOMBIE:
                return False
    return True


def tail(output: Path) -> str:
    return output.read_text(errors="replace")[-3_000:] if output.exists() else ""
