"""``python -m bench.tango``: events of Tango, read, recorded and served; a table and one JSON file.

In rounds, the order within a round is random; every event is looked for at its end. The parts:

| part | what | where |
|---|---|---|
| codec | frames of events decoded and encoded, in memory | :mod:`bench.tango.codec` |
| receive | a producer that replays, to a subscriber: decoded and numbered in memory | :mod:`bench.tango.reader` |
| record | the same through ``mama record`` to a durable log, on NATS and on Malamute | :mod:`bench.tango.reader` |
| source | our event source, with nobody subscribed, and to one real ``DeviceProxy`` | :mod:`bench.tango.source` |
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ..machine import rounds, wait_until_quiet
from ..result import RESULTS, facts, finish
from . import report
from .codec import Codec
from .reader import ATTRIBUTES, LOGS, Memory, Producer, Recorder
from .source import Source

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("codec", "receive", "record", "source")
#: Events of one run, enough for a second.
EVENTS = {"receive": 120_000, "record": 80_000, "push": 100_000, "send": 80_000, "client": 50_000}
BATCHES = 10  #: of the codec, in one run

Run = Callable[[], dict[str, Any]]
Check = Callable[[], None]


def _codec(work: Callable[[], tuple[int, float]]) -> dict[str, Any]:
    events, seconds = work()
    return {"events": events, "rate": events / seconds}


def runs(
    parts: set[str], scale: float, work: Path, stack: ExitStack
) -> tuple[dict[str, Run], list[Callable[[], None]]]:
    """name -> a run; and what is to be checked after all.

    :param stack: ends the processes that were begun
    """

    def count(name: str) -> int:
        return max(1, round(EVENTS[name] * scale / ATTRIBUTES / 50)) * ATTRIBUTES * 50

    found: dict[str, Run] = {}
    checks: list[Check] = []
    if "codec" in parts:
        ways = Codec(max(1, round(BATCHES * scale))).ways()
        found |= {name: partial(_codec, way) for name, way in ways.items()}
    if parts & {"receive", "record"}:
        producer = stack.enter_context(Producer())
    if "receive" in parts:
        found["receive"] = partial(stack.enter_context(Memory(producer)).run, count("receive"))
    if "record" in parts:
        for kind in LOGS:
            recorder = stack.enter_context(Recorder(kind, producer, work))
            found[f"record-{kind}"] = partial(recorder.run, count("record"))
            checks.append(recorder.check)
    if "source" in parts:
        source = stack.enter_context(Source(work))
        found |= {name: partial(way, count(name.partition("-")[0])) for name, way in source.ways().items()}
    return found, checks


def measure(parts: set[str], n: int, scale: float, minutes: float, patient: bool) -> list[dict[str, Any]]:
    """One record a run."""
    records: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="mama-bench-tango-", ignore_cleanup_errors=True) as work,
        ExitStack() as stack,
    ):
        ways, checks = runs(parts, scale, Path(work), stack)
        for round_ in rounds(n, "events", minutes, warm_up=False):
            for name in random.sample(sorted(ways), len(ways)):
                if patient:
                    wait_until_quiet(patience=1.0)
                records.append({"name": name, "round": round_, **ways[name]()})
                print(f"  {name:16s} {records[-1]['rate']:12,.0f} events/s", flush=True)
        for check in checks:
            check()
    return records


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tango", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of events")
    parser.add_argument("--minutes", type=float, default=1.5, help="begin no other round after it")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given again")
    parser.add_argument("--quick", action="store_true", help="does it run at all: few events, one round")
    parser.add_argument("--out", type=Path, default=RESULTS / "tango-latest.json")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.scale = 1, min(args.scale, 0.02)
    parts = set(args.only or PARTS)
    result = {"facts": facts(), "runs": measure(parts, args.rounds, args.scale, args.minutes, patient=not args.quick)}
    finish(result, args.out, report.text, report.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
