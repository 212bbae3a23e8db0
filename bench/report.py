"""``python -m bench.report RESULT.json``: keep a result of ``bench.run``, write its part of the page of benchmarks."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence

from .contenders import CONTENDERS, Contender
from .readers import READERS, ReadContender
from .result import RESULTS, Result, keep, part, ratio, spread, write_part

KEPT = RESULTS / "reference.json"

#: contender, compared with, at least this ratio (at 100 B)
GOALS = [
    ("sink-batch", "c-acks", 0.95), ("sink-message", "c-acks", 0.9), ("sink-dedup", "c-acks-id", 0.9),
    ("sink-batch", "async", 4.0), ("sink-message", "async", 4.0), ("sink-dedup", "async-id", 4.0),
    ("sink-batch", "await", 15.0), ("sink-message", "await", 15.0), ("sink-dedup", "await", 15.0),
    ("sink-batch", "sink-batch-nolog", 0.85), ("mamasub", "sub-simple", 3.0), ("log", "fetch", 3.0),
]  # fmt: skip


def table(result: Result) -> list[str]:
    """One row a contender and size: medians, and the ratio to the C program with one acknowledgement a message."""
    head = "| payload | way | rows/s | to C acks | client µs a row | server µs a row | log bytes a row |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for line, runs in _rows(result, CONTENDERS, dict.fromkeys((one.name for one in CONTENDERS), "c-acks"), 2):
        log = statistics.median(run["log_bytes_per_row"] for run in runs)
        lines.append(f"{line} {f'{log:.1f}' if log else ''} |")
    return lines


def reading(result: Result) -> list[str]:
    """One row a reader and size: medians, and the ratio to the hand-written one of its kind."""
    lines = [
        "| payload | way of reading | rows/s | to by hand | client µs a row | server µs a row |",
        "|---|---|---|---|---|---|",
    ]
    lines += [line for line, _ in _rows(result, READERS, {"log": "fetch", "mamasub": "sub-simple"}, 1)]
    return [*lines, ""] if len(lines) > 2 else []


def _rows(
    result: Result, ways: Sequence[Contender | ReadContender], others: dict[str, str], digits: int
) -> Iterator[tuple[str, list[Result]]]:
    """A line a way and size, and its runs.

    :param others: way -> the one that it is compared with
    :param digits: of that ratio
    """
    for size in sorted({r["size"] for r in result["runs"]}):
        for way in ways:
            runs = [r for r in result["runs"] if r["name"] == way.name and r["size"] == size]
            if not runs:
                continue
            share = ratio(result, way.name, others.get(way.name, ""), size)
            cpu = " | ".join(f"{statistics.median(r[field] for r in runs):.1f}" for field in ("client_us", "server_us"))
            told = f"{share:.{digits}f}" if share else ""
            yield f"| {size} B | {way.title} | {spread([r['rate'] for r in runs])} | {told} | {cpu} |", runs


def goals(result: Result) -> list[str]:
    lines = ["| goal at 100 B | aim | measured |", "|---|---|---|"]
    for name, other, aim in GOALS:
        measured = ratio(result, name, other, 100)
        if measured is not None:
            lines.append(f"| `{name}` to `{other}` | ≥ {aim:g} | {measured:.2f} |")
    logged = [r["log_bytes_per_row"] for r in result["runs"] if r["log_bytes_per_row"] and r["size"] == 100]
    if logged:
        lines.append(f"| flight log on disk, most of all settings | ≤ 32 bytes a row | {max(logged):.1f} |")
    if "micro_batch_ms" in result:
        ms = result["micro_batch_ms"]
        more = ms["sink"] - ms["nothing"]
        lines.append(
            "| micro-batch of ten rows, more than with a sink that does nothing "
            f"({ms['nothing']:.0f} ms) | ≤ 50 ms | {more:.0f} ms |"
        )
    if "memory" in result:
        low, high = (m["peak_mb"] for m in result["memory"])
        lines.append(f"| worker memory, 1 to 10 million rows a partition | ± 50 MB | {low:.0f} to {high:.0f} MB |")
    return lines


def text(result: Result) -> str:
    return "\n".join([*table(result), "", *reading(result), *goals(result)])


def micro_batch(result: Result) -> list[str]:
    """What a micro-batch of ten rows takes; none if it was not measured."""
    if "micro_batch_ms" not in result:
        return []
    ms = result["micro_batch_ms"]
    return [
        f"A micro-batch of ten rows takes {ms['nothing']:.0f} ms with a sink that does nothing, and"
        f" {ms['sink'] - ms['nothing']:.0f} ms more with `mamapub`.",
        "",
    ]


def markdown(result: Result) -> str:
    """Of payloads of 100 bytes."""
    packages = "Spark, Python, nats-server, nats-py, pyarrow"
    result = {**result, "runs": [run for run in result["runs"] if run["size"] == 100]}
    return part(result["facts"], packages, *table(result), "", *reading(result), *micro_batch(result))


def write(result: Result) -> None:
    write_part("nats", markdown(result))


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
