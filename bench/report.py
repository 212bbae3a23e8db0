"""``python -m bench.report RESULT.json``: keep a result of ``bench.run``, write its part of the page of benchmarks."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from .contenders import CONTENDERS, Contender
from .readers import READERS, ReadContender
from .result import RESULTS, Result, keep, part, ratio, spread, values, write_part

KEPT = RESULTS / "reference.json"

#: contender, compared with, at least this ratio (at 100 B)
GOALS = [
    ("sink-batch", "c-acks", 0.95), ("sink-message", "c-acks", 0.9), ("sink-dedup", "c-acks-id", 0.9),
    ("sink-batch", "async", 4.0), ("sink-message", "async", 4.0), ("sink-dedup", "async-id", 4.0),
    ("sink-batch", "await", 15.0), ("sink-message", "await", 15.0), ("sink-dedup", "await", 15.0),
    ("sink-batch", "sink-batch-nolog", 0.85), ("mamasub", "sub-simple", 3.0), ("log", "fetch", 3.0),
]  # fmt: skip


def table(result: Result, size: int) -> list[str]:
    """One row a contender: medians, and the ratio to the C program with one acknowledgement a message."""
    others = dict.fromkeys((one.name for one in CONTENDERS), "c-acks")
    return _table(result, size, f"publishing {size:,} B a row", "ratio to C", CONTENDERS, others, 2)


def reading(result: Result, size: int) -> list[str]:
    """One row a reader: medians, and the ratio to the hand-written one of its kind."""
    others = {"log": "fetch", "mamasub": "sub-simple"}
    return _table(result, size, f"reading {size:,} B a row", "ratio to the source", READERS, others, 1)


def _table(
    result: Result, size: int, head: str, compared: str, ways: Sequence[Contender | ReadContender],
    others: dict[str, str], digits: int,
) -> list[str]:  # fmt: skip
    """A line a way that was measured with rows of ``size``; no table where none was.

    :param others: way -> the one that it is compared with
    :param digits: of that ratio
    """
    lines = [f"| {head} | rows/s | {compared} | client µs a row | server µs a row |", "|---|---|---|---|---|"]
    for way in ways:
        runs = [r for r in result["runs"] if r["name"] == way.name and r["size"] == size]
        if not runs:
            continue
        share = ratio(result, way.name, others.get(way.name, ""), size)
        cpu = " | ".join(f"{statistics.median(r[field] for r in runs):.1f}" for field in ("client_us", "server_us"))
        told = f"{share:.{digits}f}" if share else ""
        lines.append(f"| {way.title} | {spread([r['rate'] for r in runs])} | {told} | {cpu} |")
    return [*lines, ""] if len(lines) > 2 else []


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
    sizes = sorted({run["size"] for run in result["runs"]})
    tables = [line for size in sizes for line in (*table(result, size), *reading(result, size))]
    return "\n".join([*tables, *goals(result)])


def flight_log(result: Result) -> list[str]:
    """Bytes a row of the flight log; none if it was not measured."""
    with_ids, without = (values(result, way, 100, "log_bytes_per_row") for way in ("sink-dedup", "sink-message"))
    if not with_ids or not without:
        return []
    each = [statistics.median(found.values()) for found in (with_ids, without)]
    return [f"The flight log takes {each[0]:.1f} bytes a row with ids, {each[1]:.1f} without."]


def micro_batch(result: Result) -> list[str]:
    """What a micro-batch of ten rows takes; none if it was not measured."""
    if "micro_batch_ms" not in result:
        return []
    ms = result["micro_batch_ms"]
    return [
        f"A micro-batch of ten rows takes {ms['nothing']:.0f} ms with a sink that does nothing, and"
        f" {ms['sink'] - ms['nothing']:.0f} ms more with `mamapub`."
    ]


def markdown(result: Result) -> str:
    """Of payloads of 100 bytes."""
    packages = "Spark, Python, nats-server, nats-py, pyarrow"
    left_out = ("log", "fetch", "async-id", "sink-batch-nolog")  # without Spark; variants
    runs = [run for run in result["runs"] if run["name"] not in left_out]
    shown = {**result, "runs": runs}
    tables = [*table(shown, 100), *reading(shown, 100)]
    return part(result["facts"], packages, *tables, *flight_log(result), *micro_batch(result))


def write(result: Result) -> None:
    write_part("nats", markdown(result))


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
