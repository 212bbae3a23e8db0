"""``python -m bench.pipe``: latency of a pipe at a steady rate, and what its micro-batches take; with ``--peers kafka``
beside Spark's own Kafka source and sink.

Latency is the time from the call that publishes a message to the moment at which the second broker has stored it, by
its own clock, which is that of this machine. Every message must arrive once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.fetch_kafka import KAFKA

from ..broker import Broker
from ..kafka import KafkaBroker, jars
from ..result import RESULTS, facts, finish
from ..run import session
from . import report
from .ways import KafkaPipe, Load, NatsPipe, Pipe, run


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipe", description="latency of a pipe at a steady rate")
    parser.add_argument("--peers", default="", choices=("", "kafka"), help="beside a Kafka of its own")
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured, after as many that warm up")
    parser.add_argument("--size", type=int, default=100, help="bytes a message")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpoints", type=Path, help="folder for the state of the queries, such as one in /dev/shm")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    parser.add_argument("--note", default="", help="of the circumstances, for the page of the result")
    parser.add_argument("--quick", action="store_true", help="does it run at all: one short round")
    parser.add_argument("--out", type=Path, default=RESULTS / "pipe-latest.json")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.seconds, args.rate = 1, 1.0, min(args.rate, 100.0)
    return args


def measure(args: argparse.Namespace, work: Path, pipes: dict[str, Pipe], settings: dict[str, str]) -> Any:
    """Rounds of all pipes in random order."""
    spark = session(work, jars()["connector_jars"] if args.peers else (), settings)
    load, runs = Load(args.rate, args.seconds, args.seconds, args.size), []
    for round_ in range(args.rounds):
        for name in random.sample(list(pipes), len(pipes)):
            here = work / f"{name}-{round_}"
            checkpoint = (args.checkpoints or work) / f"{work.name}-checkpoint-{name}-{round_}"
            try:
                found = run(pipes[name], spark, here, checkpoint, load)
            finally:
                shutil.rmtree(checkpoint, ignore_errors=True)
            runs.append({"name": name, "round": round_, **found})
            print(f"  {name:8s} {found['latency_ms']}", flush=True)
    spark.stop()
    return runs


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    settings = {
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    settings |= dict(text.split("=", 1) for text in args.conf)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mama-bench-", ignore_cleanup_errors=True)))
        broker = stack.enter_context(Broker(work / "broker"))
        pipes: dict[str, Pipe] = {"log": NatsPipe(broker, log=True), "no-log": NatsPipe(broker, log=False)}
        if args.peers:
            pipes["kafka"] = KafkaPipe(stack.enter_context(KafkaBroker(work / "kafka")))
        runs = measure(args, work, pipes, settings)
    given = {"rate": args.rate, "seconds": args.seconds, "size": args.size, "conf": settings}
    given["checkpoints"] = None if args.checkpoints is None else str(args.checkpoints)
    given["note"] = args.note
    result: dict[str, Any] = {"facts": facts() | ({"kafka": KAFKA} if args.peers else {}), "given": given, "runs": runs}
    finish(result, args.out, report.text, report.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
