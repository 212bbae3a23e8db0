"""``python -m bench.packed.report RESULT.json``: keep a result of ``bench.packed``, and write its part of the page."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from ..result import RESULTS, Result, keep, part, ratio, spread, values, write_part
from .ways import READ_WAYS, WAYS

KEPT = RESULTS / "packed-reference.json"

#: bytes a value (0 = five columns), way, compared with, at least this ratio
GOALS = [
    (100, "lines", "kafka-tuned", 1.5), (100, "arrow", "kafka-tuned", 1.5),
    (100, "lines", "kafka", 2.5), (100, "arrow", "kafka", 2.5),
    (1000, "lines", "kafka-tuned", 1.3), (1000, "arrow", "kafka-tuned", 1.3),
    (100, "lines-tuned", "kafka-tuned", 1.5), (100, "arrow-tuned", "kafka-tuned", 1.5),
    (1000, "lines-tuned", "kafka-tuned", 1.3), (1000, "arrow-tuned", "kafka-tuned", 1.3),
    (0, "typed", "json", 1.5), (100, "mamasub", "memory", 0.7), (1000, "mamasub", "memory", 0.7),
    (100, "mamasub", "kafka-source", 0.0), (1000, "mamasub", "kafka-source", 0.0),
]  # fmt: skip

#: 100-byte rows against the lower of: so many times the C program, so much of what Spark hands to Python
TIMES_C, OF_DROPPED = 5.0, 0.5


def size_text(size: int) -> str:
    return f"{size:,} B" if size else "5 columns"


def rows_of(result: Result, ways: list[Any], other: dict[int, str], head: str) -> list[str]:
    """A table line a way and size: medians, and the ratio to ``other[size]``."""
    lines = [
        f"| row | {head} | rows/s | ratio | client µs a row | server µs a row |",
        "|---|---|---|---|---|---|",
    ]
    for size, compared in other.items():
        for way in ways:
            runs = [r for r in result["runs"] if r["name"] == way.name and r["size"] == size]
            if not runs:
                continue
            mid = {f: statistics.median(r[f] for r in runs) for f in ("client_us", "server_us")}
            share = ratio(result, way.name, compared, size)
            lines.append(
                f"| {size_text(size)} | {way.title} | {spread([r['rate'] for r in runs])} "
                f"| {f'{share:.2f}' if share else ''} | {mid['client_us']:.2f} | {mid['server_us']:.2f} |"
            )
    return [*lines, ""] if len(lines) > 2 else []


def publishing(result: Result) -> list[str]:
    base = "kafka-tuned" if values(result, "kafka-tuned", 100) else "c-acks"
    ways = [way for way in WAYS if way.name not in IN_BETWEEN]
    return rows_of(result, ways, {100: base, 1000: base, 0: "json"}, "way")


def reading(result: Result) -> list[str]:
    return rows_of(result, READ_WAYS, {100: "memory", 1000: "memory"}, "way of reading")


def ceiling(result: Result, name: str) -> float | None:
    """Median ratio to the lower of both ceilings, within the rounds."""
    mine, c, dropped = (values(result, way, 100) for way in (name, "c-acks", "drop"))
    found = [mine[r] / min(TIMES_C * c[r], OF_DROPPED * dropped[r]) for r in mine.keys() & c.keys() & dropped.keys()]
    return statistics.median(found) if found else None


def goals(result: Result) -> list[str]:
    lines = ["| goal | aim | measured |", "|---|---|---|"]
    for size, name, other, aim in GOALS:
        measured = ratio(result, name, other, size)
        if measured is not None:
            wanted = f"≥ {aim:g}" if aim else "shown"
            lines.append(f"| {size_text(size)}: `{name}` to `{other}` | {wanted} | {measured:.2f} |")
    for name in ("lines", "arrow"):
        measured = ceiling(result, name)
        if measured is not None:
            what = f"the lower of {TIMES_C:g} times `c-acks` and {OF_DROPPED:g} times `drop`"
            lines.append(f"| 100 B: `{name}` to {what} | ≥ 1 | {measured:.2f} |")
    return lines if len(lines) > 2 else []


#: Ways that are there for the profile alone.
IN_BETWEEN = {"pack", "nolog"}
#: What a row costs from Spark to its acknowledgement: the client's processor time of a way beyond that of another.
STAGES = [
    ("hand-over from Spark to Python", "drop", None),
    ("grouping, packing, hashing", "pack", "drop"),
    ("framing, sending, reading acknowledgements", "nolog", "pack"),
    ("flight log", "lines", "nolog"),
]
#: The stage of the server.
STORING = "nats-server"


def middle(result: Result, name: str, size: int, field: str) -> float | None:
    found = [r[field] for r in result["runs"] if r["name"] == name and r["size"] == size]
    return statistics.median(found) if found else None


def profile(result: Result, size: int) -> list[str]:
    """Where the processor time of a row goes. Stages run side by side, so the wall time of a row is less."""
    costs = stage_costs(result, size)
    lines = [f"| {stage} | {cost:.2f} | {cost / sum(costs.values()):.0%} |" for stage, cost in costs.items()]
    return (
        [f"| stage of a row of {size_text(size)} | processor µs | share |", "|---|---|---|", *lines, ""]
        if lines
        else []
    )


def stage_costs(result: Result, size: int) -> dict[str, float]:
    """Stage -> microseconds of a row with ``lines``; empty: not all were measured."""
    ways = {name for _, name, _ in STAGES}
    client = {name: middle(result, name, size, "client_us") for name in ways}
    server = middle(result, "lines", size, "server_us")
    if server is None or None in client.values():
        return {}
    costs = {
        stage: (client[name] or 0.0) - (client[before] or 0.0 if before else 0.0) for stage, name, before in STAGES
    }
    return {**costs, STORING: server}


def text(result: Result) -> str:
    profiles = [*profile(result, 100), *profile(result, 1000)]
    return "\n".join([*publishing(result), *reading(result), *profiles, *goals(result)])


def about_kafka(result: Result) -> list[str]:
    if "kafka" not in result:
        return []
    k = result["kafka"]
    tuned = ", ".join(f"`{name}={value}`" for name, value in k["tuned"].items())
    stub = (
        " The jar `spark-token-provider-kafka-0-10`, for delegation tokens only, was not to be had;"
        " `bench/KafkaTokenStub.scala` stands in for it."
        if k["token_stub"]
        else ""
    )
    return [
        f"Kafka {k['broker']}, one KRaft node with G1 and 1 GiB of heap, a new topic of {k['partitions']} partitions a"
        f" run; Spark's connector {k['connector']}, kafka-clients {k['clients']}, `acks=all`; tuned: {tuned}.{stub}",
        "",
    ]


def markdown(result: Result) -> str:
    """Rows of five columns: rates of the others are those of ``bench.steady``."""
    typed, lines = (spread(values(result, way, 0).values()) for way in ("typed", "json"))
    columns = f"Five columns: {typed} rows/s with `pack=arrow`, {lines} as JSON with `pack=lines`."
    return part(result["facts"], "Spark, Python, nats-server, pyarrow", columns)


def write(result: Result) -> None:
    write_part("packed", markdown(result))


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
