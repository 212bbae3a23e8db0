"""``python -m bench.pipe.report RESULT.json``: keep a result of ``bench.pipe``, and write its part of the page."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from ..result import RESULTS, Result, keep, latency_ratio, part, spread, write_part

KEPT = RESULTS / "pipe-reference.json"
TITLES = {
    "log": "**mamasub** to **mamapub**, flight log on",
    "no-log": "**mamasub** to **mamapub**, no flight log",
    "kafka": "Spark's Kafka source to sink",
}
_LATENCIES = ("p50", "p99")
_DURATIONS = ("addBatch", "walCommit", "commitOffsets", "triggerExecution")
#: Those of the durations that the page shows.
_ON_PAGE = ("addBatch", "triggerExecution")


def table(result: Result, durations: Sequence[str]) -> list[str]:
    """One row a pipe: medians of the rounds, those of latencies with the ratio to Kafka; of durations, of the medians
    of each round."""
    shown = (*_LATENCIES, *durations)
    lines = [f"| pipe | {' | '.join(shown)} |", "|---|" + "---|" * len(shown)]
    for name, title in TITLES.items():
        runs = [r for r in result["runs"] if r["name"] == name]
        if not runs:
            continue
        cells = []
        for which in _LATENCIES:
            to_kafka = None if name == "kafka" else latency_ratio(result["runs"], name, which)
            middle = spread([r["latency_ms"][which] for r in runs])
            cells.append(middle if to_kafka is None else f"{middle}, {to_kafka:.2f}")
        for which in durations:
            cells.append(spread([statistics.median(some) for r in runs if (some := r["durations_ms"][which])]))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def text(result: Result, durations: Sequence[str] = _DURATIONS) -> str:
    given = result["given"]
    where = f"; checkpoints: {given['checkpoints']}" if given["checkpoints"] else ""
    head = f"{given['rate']:,.0f} messages ({given['size']} bytes) a second for {given['seconds']:g} s after a warm-up"
    return "\n".join([f"Milliseconds, ratios to Kafka; {head}{where}.", "", *table(result, durations)])


def markdown(result: Result) -> str:
    facts, note = result["facts"], result["given"].get("note")
    kafka = f"Kafka {facts['kafka']}. " if "kafka" in facts else ""
    return part(facts, "Spark, nats-server", f"{kafka}{f'{note}. ' if note else ''}{text(result, _ON_PAGE)}")


def write(result: Result) -> None:
    write_part("pipe", markdown(result))


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
