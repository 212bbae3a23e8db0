"""``python -m bench.packed``: packed messages beside one message a row, and with ``--peers kafka`` beside Kafka.

As :mod:`bench.run`: rounds in random order, ratios within a round, and the rows at the broker are counted after every
run: messages by the stream, packed rows by the header of each message (in the warm-up by unpacking them), Kafka by its
offsets. One row too many or too few ends it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..broker import Broker
from ..contenders import compile_ceiling
from ..kafka import KafkaBroker, jars
from ..result import RESULTS, facts, finish
from ..run import session
from . import report
from .runs import READ_ROWS, PackedBench, kafka_facts
from .stages import PackSource
from .ways import READ_WAYS, WAYS, MemorySource, ReadWay, Way, Workload

SETTINGS = {"spark.python.unix.domain.socket.enabled": "true"}  #: at this many bytes a second TCP costs too much
KAFKA_WAYS = {"kafka", "kafka-tuned", "kafka-source"}


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
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mama-bench-", ignore_cleanup_errors=True)))
        broker = stack.enter_context(Broker(work / "broker"))
        kafka = stack.enter_context(KafkaBroker(work / "kafka")) if args.peers else None
        spark = session(work, jars()["connector_jars"] if kafka is not None else (), SETTINGS)
        spark.dataSource.register(MemorySource)
        spark.dataSource.register(PackSource)
        stage = Workload(spark, broker.url, broker.port, work, kafka)
        if any(way.name == "c-acks" for way in ways):
            stage.program = compile_ceiling(work)
        bench = PackedBench(stage, broker, args.scale, patient=not args.quick)
        sizes = [int(s) for s in args.sizes.split(",")]
        bench.publishing(ways, sizes, args.rounds, args.minutes)
        for size in READ_ROWS if readers else ():
            if size in sizes:
                bench.reading(readers, size, args.rounds)
        result: dict[str, Any] = {"facts": facts(), "scale": args.scale, "runs": bench.runs}
        if kafka is not None:
            result["kafka"] = kafka_facts()
        spark.stop()
    finish(result, args.out, report.text, report.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
