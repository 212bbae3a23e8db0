"""``python -m bench.steady --peers kafka``: what is compared with Kafka and with the C program, in steady state.

The first run of each way in a session, with few rows, is its cold run. Every run of a round lasts at least 15 s, 30 s
where the cost of the flight log is measured; a shorter one is repeated with more rows and counts as warm-up. Rounds are
in random order, but with the flight log and without it in turns; ratios are taken within a round, and rows are counted
at the broker as in :mod:`bench.packed`. A server with ids in its memory is restarted after the run.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..broker import Broker
from ..contenders import compile_ceiling
from ..kafka import KafkaBroker, jars
from ..packed.__main__ import KAFKA_WAYS, SETTINGS
from ..packed.runs import READ_ROWS, PackedBench, kafka_facts
from ..packed.ways import MemorySource, ReadWay, Workload, memory
from ..pipe.ways import KafkaPipe, Load, NatsPipe, Pipe
from ..pipe.ways import run as run_pipe
from ..result import RESULTS, facts, finish
from ..run import Bench, session
from . import report
from .busy import busy_core
from .ways import (
    CODECS,
    FLIGHTS,
    LOG_PAIR,
    PUBLISHING,
    READ_FROM,
    READING,
    ROWS_A_BATCH,
    SECONDS,
    SPARKS_ROWS,
    TYPED_FLIGHTS,
    Flights,
    Steady,
)

Record = dict[str, Any]
Run = Callable[[int], None]  #: given the number of the round
#: Shares of the time after which no other round of publishing, and of reading, is begun.
PUBLISHING_SHARE, READING_SHARE = 0.6, 0.85
#: More rows than last as long as wanted, by the rate of the run before; the first rate is that of the cold run.
_MORE, _MUCH_MORE = 1.15, 1.4
MICRO_BATCHES = 40
PIPE = Load(rate=1_000.0, warm_up=10.0, seconds=15.0, size=100)


class SteadyBench:
    """The runs of all ways.

    :param bench: makes them
    :param factor: on the number of rows of cold runs, and on the seconds of the others
    """

    def __init__(self, bench: PackedBench, factor: float, deadline: Callable[[float], float]) -> None:
        self._bench, self._factor, self._deadline = bench, factor, deadline
        self._flights = Flights(bench.stage.spark, bench.stage.work)
        self._rates: dict[tuple[str, int], float] = {}
        self._busy: dict[str, float] = {}  # cores that the client of a way kept busy in its last run
        self.cold: list[Record] = []

    def publishing(self, ways: list[Steady], rounds: int) -> None:
        print("first runs, cold", flush=True)
        for steady in sorted(random.sample(ways, len(ways)), key=lambda steady: bool(steady.beside)):
            self._cold(self._publish(steady, max(2_000, int(steady.rows * self._factor)), -1))
        pair, others = list[Run](), list[list[Run]]()
        for steady in ways:
            run = self._steady_run(steady.way.name, steady.size, steady.seconds, partial(self._publish, steady))
            if steady.way.name in LOG_PAIR:
                pair.append(run)
            elif steady.seconds:
                others.append([run])
        self._rounds(rounds, PUBLISHING_SHARE, "publishing", [*others, pair] if pair else others)

    def reading(self, names: set[str], rounds: int) -> None:
        """The same rows are read several times in a run."""
        for size, rows in READ_ROWS.items():
            rows, ways = max(2_000, int(rows * self._factor)), [way for way in READING if way.name in names]
            self._bench.fill(size, rows, READ_FROM)
            for way in ways:
                self._cold(self._bench.read(way, size, rows, -1))
            runs = [[self._steady_run(way.name, size, SECONDS, partial(self._read, way, size, rows))] for way in ways]
            share = READING_SHARE - (READING_SHARE - PUBLISHING_SHARE) / 2 * (size == min(READ_ROWS))
            self._rounds(rounds, share, f"reading {size} B", runs)
            shutil.rmtree(memory(self._bench.stage.work))

    def _rounds(self, rounds: int, share: float, what: str, groups: list[list[Run]]) -> None:
        """:param groups: runs of one group follow each other; of more than one, each is made twice"""
        longest = 0.0
        for round_ in range(rounds if groups else 0):
            began = time.monotonic()
            if round_ and began + longest > self._deadline(share):
                print(f"out of time: {round_} rounds of {rounds}", flush=True)
                return
            print(f"{what}, round {round_ + 1} of {rounds}", flush=True)
            for group in random.sample(groups, len(groups)):
                order = random.sample(group, len(group))
                for run in order if len(order) == 1 else [*order, *reversed(order)]:
                    run(round_)
            longest = max(longest, time.monotonic() - began)

    def _publish(self, steady: Steady, rows: int, round_: int) -> Record:
        busy = 0.0
        if steady.beside is not None:  # a JVM without work works a little, too
            busy = self._busy[steady.beside[0]] - self._busy[steady.beside[1]]
        with busy_core(busy):
            record = self._publish_rows(steady, rows, round_)
        self._busy[steady.way.name] = record["client_us"] * record["rate"] / 1e6
        return record

    def _publish_rows(self, steady: Steady, rows: int, round_: int) -> Record:
        together = ROWS_A_BATCH.get(steady.size, SPARKS_ROWS)
        self._bench.stage.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(together))
        if steady.size not in (FLIGHTS, TYPED_FLIGHTS):
            return self._bench.publish(steady.way, steady.size, rows, round_)
        rows = math.ceil(rows / self._flights.rows) * self._flights.rows
        df = self._flights.frame(rows, steady.size)
        return self._bench.publish(steady.way, steady.size, rows, round_, df=df)

    def _read(self, way: ReadWay, size: int, stored: int, rows: int, round_: int) -> Record:
        return self._bench.read(way, size, stored, round_, math.ceil(rows / stored))

    def _steady_run(self, name: str, size: int, seconds: float, run: Callable[[int, int], Record]) -> Run:
        """:param run: given the number of rows and of the round"""
        seconds *= self._factor

        def long_enough(round_: int) -> None:
            more = _MORE if round_ else _MUCH_MORE
            while True:
                record = run(max(2_000, int(self._rates[name, size] * seconds * more)), round_)
                self._rates[name, size], more = record["rate"], _MORE
                if record["seconds"] >= seconds:
                    return self._bench.keep(record)

        return long_enough

    def _cold(self, record: Record) -> None:
        self.cold.append(record)
        self._rates[record["name"], record["size"]] = record["rate"]
        print(f"  {record['name']:14s} {record['size']:5d} B  {record['rate']:10,.0f} rows/s", flush=True)


def pipes(bench: PackedBench, load: Load, rounds: int) -> list[Record]:
    """Latency and micro-batches of ``mamasub`` to ``mamapub``, and of Kafka to Kafka."""
    stage, found = bench.stage, list[Record]()
    compared: dict[str, Pipe] = {"log": NatsPipe(bench.broker, log=True)}
    if stage.kafka is not None:
        compared["kafka"] = KafkaPipe(stage.kafka)
    for round_ in range(rounds):
        for name in random.sample(list(compared), len(compared)):
            here = stage.work / f"pipe-{name}-{round_}"
            found.append(
                {"name": name, "round": round_, **run_pipe(compared[name], stage.spark, here, here / "state", load)}
            )
            print(f"  pipe {name:8s} {found[-1]['latency_ms']}", flush=True)
    return found


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.steady", description="rates in steady state, beside others")
    parser.add_argument("--peers", default="", choices=("", "kafka"), help="beside a Kafka (scripts/setup.sh kafka)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=25.0, help="begin no round that would end later")
    parser.add_argument("--only", default="", help="comma list of ways, `pipe` and `micro`")
    parser.add_argument("--quick", action="store_true", help="does it run at all: few rows, one round")
    parser.add_argument("--out", type=Path, default=RESULTS / "steady-latest.json")
    args = parser.parse_args(argv)
    args.factor = 0.005 if args.quick else 1.0
    if args.quick:
        args.rounds = 1
    return args


def choose(only: str, peers: str) -> set[str]:
    names = {steady.way.name for steady in PUBLISHING} | {way.name for way in READING} | {"pipe", "micro"}
    chosen = set(only.split(",")) if only else names
    if unknown := chosen - names:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    for steady in PUBLISHING:
        if steady.way.name in chosen and (missing := set(steady.beside or ()) - chosen):
            raise SystemExit(f"{steady.way.name} goes by what others take: choose {', '.join(sorted(missing))}, too")
    return chosen if peers else chosen - KAFKA_WAYS - {f"kafka-{codec}" for codec in CODECS}


def measure(bench: PackedBench, names: set[str], args: argparse.Namespace) -> Record:
    """The runs of a result."""
    began = time.monotonic()
    steady = SteadyBench(bench, args.factor, lambda share: began + share * args.minutes * 60)
    steady.publishing([way for way in PUBLISHING if way.way.name in names], args.rounds)
    if names & {way.name for way in READING}:
        steady.reading(names, args.rounds)
    result: Record = {"runs": bench.runs, "cold": steady.cold, "seconds": SECONDS * args.factor}
    if "pipe" in names:
        load = replace(PIPE, rate=100.0, warm_up=1.0, seconds=1.0) if args.quick else PIPE
        result["pipes"] = pipes(bench, load, args.rounds)
    if "micro" in names:
        one = Bench(bench.stage.spark, bench.broker, bench.stage.work)
        result["micro_batch_ms"] = one.micro_batches(3 if args.quick else MICRO_BATCHES)
    return result


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    names = choose(args.only, args.peers)
    settings = {**SETTINGS, "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mama-bench-", ignore_cleanup_errors=True)))
        broker = stack.enter_context(Broker(work / "broker"))
        kafka = stack.enter_context(KafkaBroker(work / "kafka")) if args.peers else None
        spark = session(work, jars()["connector_jars"] if kafka is not None else (), settings)
        spark.dataSource.register(MemorySource)
        stage = Workload(spark, broker.url, broker.port, work, kafka)
        if any(name.startswith("c-") for name in names):
            stage.program = compile_ceiling(work)
        result = {"facts": facts(), **measure(PackedBench(stage, broker, 1.0, patient=not args.quick), names, args)}
        if kafka is not None:
            result["kafka"] = kafka_facts()
        spark.stop()
    finish(result, args.out, report.text, report.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
