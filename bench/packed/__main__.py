"""``python -m bench.packed``: packed messages beside one message a row, and with ``--peers kafka`` beside Kafka.

As :mod:`bench.run`: rounds in random order, ratios within a round, and the rows at the broker are counted after every
run: messages by the stream, packed rows by the header of each message (in the warm-up by unpacking them), Kafka by its
offsets. One row too many or too few ends it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..broker import Broker
from ..contenders import compile_ceiling, flight_log
from ..kafka import PARTITIONS, TUNED, KafkaBroker, jars
from ..machine import Meter, wait_until_quiet
from ..result import RESULTS, facts, finish
from ..run import session
from . import report
from .stages import PackSource
from .ways import (
    READ_WAYS,
    WAYS,
    MemorySource,
    ReadWay,
    Way,
    Workload,
    found_in,
    frame,
    keep_batches,
    memory,
    packed_rows,
)

SIZES = (100, 1000, 0)  #: bytes a value; 0 = five columns
READ_ROWS = {100: 2_000_000, 1000: 700_000}  #: by bytes a value
SETTINGS = {"spark.python.unix.domain.socket.enabled": "true"}  #: at this many octets a second TCP costs too much
_PATIENCE = 4.0  #: seconds that a run waits for others to become quiet
KAFKA_WAYS = {"kafka", "kafka-tuned", "kafka-source"}


@dataclass
class PackedBench:
    """What all runs share. ``runs`` collects one record a run."""

    stage: Workload
    broker: Broker
    scale: float
    patient: bool
    runs: list[dict[str, Any]] = field(default_factory=list)

    def _meter(self) -> Meter:
        kafka = self.stage.kafka
        return Meter(self.broker.pid, *([] if kafka is None else [kafka.pid]))

    def _record(self, name: str, size: int, round_: int, rows: int, meter: Meter, log_bytes: int = 0) -> None:
        record = {
            "name": name, "size": size, "round": round_, "rows": rows, "seconds": meter.seconds,
            "rate": rows / meter.seconds, "client_us": meter.client / rows * 1e6,
            "server_us": meter.server / rows * 1e6, "other_cores": meter.others, "log_bytes_per_row": log_bytes / rows,
        }  # fmt: skip
        self.runs.append(record)
        print(f"  {name:14s} {size:5d} B  {record['rate']:10,.0f} rows/s", flush=True)

    def publish(self, way: Way, size: int, rows: int, round_: int) -> None:
        """One measured run; ``round_`` -1 warms up and is not recorded."""
        stage, log = self.stage, flight_log(self.stage.work)
        self.broker.purge()
        if way.where == "kafka":
            assert stage.kafka is not None
            stage.kafka.new_topic(stage.spark)
        shutil.rmtree(log, ignore_errors=True)
        df = frame(stage.spark, rows, size)
        if round_ >= 0 and self.patient:
            wait_until_quiet(patience=_PATIENCE)
        with self._meter() as meter:
            way.publish(stage, df, rows, size)
        stored = self._stored(way, whole=round_ < 0)
        if stored is not None and stored != rows:
            raise RuntimeError(f"{way.name}: {rows} rows sent, {stored} at the broker")
        if way.forget:
            self.broker.purge()
            self.broker.restart()
        if round_ >= 0:
            octets = sum(f.stat().st_size for f in log.rglob("*") if f.is_file()) if log.exists() else 0
            self._record(way.name, size, round_, rows, meter, octets)

    def _stored(self, way: Way, whole: bool) -> int | None:
        if way.where == "packs":
            return packed_rows(self.broker.url, whole)
        if way.where == "nats":
            return self.broker.count()
        if way.where == "kafka":
            assert self.stage.kafka is not None
            return self.stage.kafka.count(self.stage.spark)
        return None

    def publishing(self, ways: list[Way], sizes: list[int], rounds: int, deadline: float) -> None:
        """Rounds of all sizes together, so that what runs out of time has as many of each."""
        todo = [(way, size) for size in sizes for way in ways if size in way.rows]
        for round_ in range(-1, rounds if todo else -1):
            if round_ > 0 and time.monotonic() > deadline:
                print(f"out of time: {round_} rounds of {rounds}", flush=True)
                break
            print("warm-up" if round_ < 0 else f"round {round_ + 1} of {rounds}", flush=True)
            for way, size in random.sample(todo, len(todo)):
                rows = max(2_000, int(way.rows[size] * self.scale))
                self.publish(way, size, max(2_000, rows // 20) if round_ < 0 else rows, round_)

    def reading(self, ways: list[ReadWay], size: int, rounds: int) -> None:
        """All read the same rows; ``memory`` yields what ``mamasub`` would."""
        stage, rows = self.stage, max(2_000, int(READ_ROWS[size] * self.scale))
        fill = {w.name: w for w in WAYS}
        self.publish(fill["arrow"], size, rows, -1)
        keep_batches(stage)
        if stage.kafka is not None:
            stage.kafka.new_topic(stage.spark)
            fill["kafka-tuned"].publish(stage, frame(stage.spark, rows, size), rows, size)
        for round_ in range(-1, rounds):
            print(f"reading {size} B, {'warm-up' if round_ < 0 else f'round {round_ + 1} of {rounds}'}", flush=True)
            for way in random.sample(ways, len(ways)):
                if round_ >= 0 and self.patient:
                    wait_until_quiet(patience=_PATIENCE)
                with self._meter() as meter:
                    found = found_in(way.read(stage))
                if found != (rows, rows * size):
                    raise RuntimeError(f"{way.name}: of {rows} rows of {size} bytes came (rows, bytes) {found}")
                if round_ >= 0:
                    self._record(way.name, size, round_, rows, meter)
        shutil.rmtree(memory(stage.work))


def kafka_facts() -> dict[str, Any]:
    found = jars()
    client = next(jar for jar in found["connector_jars"] if "kafka-clients" in jar)
    return {
        "broker": found["wanted"]["broker"].split(",")[0].rpartition(":")[2],
        "clients": client.rpartition("-")[2].removesuffix(".jar"),
        "connector": found["wanted"]["connector"].rpartition(":")[2],
        "token_stub": found["token_stub"],
        "tuned": TUNED,
        "partitions": PARTITIONS,
    }


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.packed", description="packed messages beside other ways")
    parser.add_argument("--peers", default="", help="kafka: beside a Kafka of its own (scripts/setup.sh kafka)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="100,1000,0", help="bytes a value; 0 = five columns")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows")
    parser.add_argument("--only", default="", help="comma list of ways")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no other publishing round after it")
    parser.add_argument("--quick", action="store_true", help="does it run at all: few rows, one round")
    parser.add_argument("--out", type=Path, default=RESULTS / "packed-latest.json")
    args = parser.parse_args(argv)
    if args.peers not in ("", "kafka"):
        parser.error(f"--peers {args.peers}: the only peer is kafka")
    if args.quick:
        args.rounds, args.scale = 1, min(args.scale, 0.005)
    return args


def choose(only: str, peers: str) -> tuple[list[Way], list[ReadWay]]:
    names = {w.name for w in WAYS} | {w.name for w in READ_WAYS}
    chosen = set(only.split(",")) if only else names
    if unknown := chosen - names:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    if not peers:
        chosen -= KAFKA_WAYS
    return [w for w in WAYS if w.name in chosen], [w for w in READ_WAYS if w.name in chosen]


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    ways, readers = choose(args.only, args.peers)
    work = Path(tempfile.mkdtemp(prefix="mama-bench-"))
    broker, kafka = Broker(work / "broker"), KafkaBroker(work / "kafka") if args.peers else None
    try:
        broker.start()
        if kafka is not None:
            kafka.start()
        spark = session(work, jars()["connector_jars"] if kafka is not None else (), SETTINGS)
        spark.dataSource.register(MemorySource)
        spark.dataSource.register(PackSource)
        stage = Workload(spark, broker.url, broker.port, work, kafka)
        if any(way.name == "c-acks" for way in ways):
            stage.program = compile_ceiling(work)
        bench = PackedBench(stage, broker, args.scale, patient=not args.quick)
        sizes = [int(s) for s in args.sizes.split(",")]
        bench.publishing(ways, sizes, args.rounds, time.monotonic() + args.minutes * 60)
        for size in READ_ROWS if readers else ():
            if size in sizes:
                bench.reading(readers, size, args.rounds)
        result: dict[str, Any] = {
            "facts": facts(),
            "scale": args.scale,
            "runs": bench.runs,
        }
        if kafka is not None:
            result["kafka"] = kafka_facts()
        spark.stop()
    finally:
        if kafka is not None:
            kafka.stop()
        broker.stop()
        shutil.rmtree(work, ignore_errors=True)
    finish(result, args.out, report.text(result), report.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
