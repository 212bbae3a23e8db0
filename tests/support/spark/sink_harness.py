"""What runs of the sink left behind, for tests: the flight log held against the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from mama_spark.testing.oracle import Outcome, Verdict, conserve
from mama_spark.testing.waiting import eventually
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.nats.nats_servers import FetchedMessage
from tests.support.processes import task_workers

_GATE = 400.0
PATIENCE = 240.0

#: What holds rows back in small portions needs them, and nothing kept until there is more.
SMALL_BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
    "spark.sql.execution.pandas.udf.buffer.size": "4096",
}

Background = Callable[[Callable[[], Any]], Future[Any]]
TERMINAL = ("acked", "completed_exceptionally", "timeout")


def flights(log: Path | str, committed: bool | None = True) -> pa.Table:
    """The terminal events of a flight log; ``committed=None``: of all attempts."""
    table = pa.table(DeltaTable(str(log)).to_pyarrow_table())
    table = table.filter(pc.is_in(table["event"], value_set=pa.array(TERMINAL)))
    return table if committed is None else table.filter(pc.equal(table["committed"], committed))


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    for name, value in SMALL_BATCHES.items():
        spark.conf.set(name, value)
    yield
    for name in SMALL_BATCHES:
        spark.conf.unset(name)


class WriteGate:
    """Holds a write back before its last rows, so that it is still going on when a test interrupts it; open when it is
    left.

    :param folder: of a file that says whether the gate is open
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "open"

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._file.touch()

    def before_the_end(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``mapInArrow``: the last batch of a partition that has several comes when the gate is open."""
        held = next(batches, None)
        several = False
        for batch in batches:
            assert held is not None
            yield held
            held, several = batch, True
        if several:
            eventually(self._file.exists, "the test opens the gate", _GATE)
        if held is not None:
            yield held


def counts(table: pa.Table, column: str) -> dict[Any, int]:
    """How often each value stands in ``column``."""
    return {v["values"]: v["counts"] for v in pc.value_counts(table[column].combine_chunks()).to_pylist()}


class StreamContents(Protocol):
    """Tells what a stream holds."""

    def messages(self, name: str, /) -> list[FetchedMessage]: ...


def verdict(holder: StreamContents, stream: str, log: Path | str, *, sent: int, exactly_once: bool = True) -> Verdict:
    """Hold the flight log, kept with ``flightLogPayload=all``, against what the broker holds.

    The committed attempts must have one outcome for each of the ``sent`` rows, all of them different. What an attempt
    that was not committed calls acked must be there, too.
    """
    stored = [(m.sequence, m.topic, m.payload) for m in holder.messages(stream)]
    good, failed = (_outcomes(flights(log, committed)) for committed in (True, False))
    found = conserve(good, stored, sent=sent, exactly_once=exactly_once)
    held = {(topic, value) for _, topic, value in stored}
    for o in failed:
        if o.event == "acked" and (o.topic, o.payload) not in held:
            found.faults.append(f"acked by an attempt that failed, but not at the broker: {o.payload[:40]!r}")
    if len({(o.topic, o.payload) for o in good}) != sent:
        found.faults.append(f"{sent} different rows went in, others came out")
    return found


def _outcomes(table: pa.Table) -> list[Outcome]:
    names = ("topic", "payload", "event", "may_have_landed", "sequence")
    columns = [table[name].to_pylist() for name in names]
    return [
        Outcome(topic, payload, event, bool(doubt), -1 if sequence is None else sequence)
        for topic, payload, event, doubt, sequence in zip(*columns, strict=True)
    ]


class InterruptedWrite:
    """A write to the stream ORDERS that is to be interrupted, with a flight log that keeps the payloads.

    :param options: of the sink
    """

    def __init__(self, spark: SparkSession, room: RestartableBroker, folder: Path, **options: str) -> None:
        self.spark, self.room, self.log = spark, room, folder / "log"
        self.options = {**room.options("ORDERS"), "flightLog": str(self.log), "flightLogPayload": "all", **options}
        self.stored, self.gate = room.counter("ORDERS"), WriteGate(folder)

    def rows(self, n: int) -> DataFrame:
        return self.spark.range(0, n, 1, 2).selectExpr(
            "concat('orders.r', cast(id % 5 as string)) AS topic", "concat('order ', id) AS value"
        )

    def held(self, rows: DataFrame) -> DataFrame:
        """These rows, the last batch of a partition when ``gate`` is open."""
        return rows.mapInArrow(self.gate.before_the_end, "topic string, value string")

    def out_of_order(self, n: int, stored: int, size: int) -> DataFrame:
        """A partition of ``n`` rows whose first attempt dies when the broker holds ``stored`` messages, and whose
        second attempt has its rows in the opposite order."""
        one, make = self.spark.range(0, 1, 1, 1), fails_once(self.stored, n, stored, size)
        return one.mapInArrow(make, "topic string, value string")

    def write(self, rows: DataFrame, **options: str) -> None:
        rows.write.format("mamapub").options(**{**self.options, **options}).mode("append").save()

    def under_way(self, writing: Future[Any], n: int) -> None:
        """Until so many messages are stored."""

        def enough() -> bool:
            if writing.done():
                writing.result()  # raises what ended it
            return self.stored() >= n

        eventually(enough, f"{n} messages are stored", PATIENCE)

    def workers(self) -> list[int]:
        """The Python workers that publish."""
        return task_workers(self.spark.sparkContext._gateway.proc.pid, self.room.port)  # type: ignore[union-attr]


def fails_once(
    held: Callable[[], int], n: int, stored: int, size: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """See :meth:`InterruptedWrite.out_of_order`."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        order = range(n) if first else range(n - 1, -1, -1)
        for start in range(0, n, size):
            if first and start == n * 3 // 4:
                eventually(lambda: held() >= stored, "the first attempt published its rows", 60)
                raise RuntimeError("the first attempt ends here")
            chosen = list(order[start : start + size])
            yield pa.RecordBatch.from_pydict(
                {"topic": [f"orders.r{i % 5}" for i in chosen], "value": [f"order {i}" for i in chosen]}
            )

    return rows


def numbered_orders(spark: SparkSession, n: int, partitions: int = 2) -> DataFrame:
    """Topic, value, and a number ``k`` for the flight log."""
    return spark.range(0, n, 1, partitions).selectExpr(
        "concat('orders.r', cast(id % 7 as string)) AS topic", "cast(concat('row ', id) as binary) AS value", "id AS k"
    )


def check_conserved(
    flights: Iterable[dict[str, Any]], sent: Iterable[Row], stored: Iterable[tuple[int, str, bytes]]
) -> None:
    """Hold flights that name their row by ``k`` against the rows and what the broker holds."""
    payloads = {r.k: (r.topic, bytes(r.value)) for r in sent}
    outcomes = [
        Outcome(*payloads[f["k"]], f["event"], f["may_have_landed"], -1 if f["sequence"] is None else f["sequence"])
        for f in flights
    ]
    conserve(outcomes, stored, sent=len(payloads)).raise_faults()
