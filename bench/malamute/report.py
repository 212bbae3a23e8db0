"""``python -m bench.malamute.report RESULT.json``: keep a result of ``bench.malamute``, write its part of the page."""

from __future__ import annotations

import statistics
import sys

from ..result import RESULTS, Result, keep, part, ratio, spread, values, write_part

KEPT = RESULTS / "malamute-reference.json"
TITLES = {
    "forward": "pyzmq ROUTER that forwards frames: no matching, no engine",
    "literal": "pyzmq broker, a message between threads for each ACCEPT and delivery",
    "simple": "**mama broker**, engine `simple`",
    "durable": "**mama broker**, engine `durable`",
    "original": "the original broker (C)",
    "write-nats": "`df.write` to NATS, file storage, `dedup=false` (fast ingest)",
    "write-nats-message": "`df.write` to NATS, `dedup=false`, `ackMode=message`",
    "write-nats-dedup": "`df.write` to NATS, defaults (`dedup=true`)",
    "write-durable": "`df.write` to **mama broker**, engine `durable`, `dedup=false`",
    "write-durable-dedup": "`df.write` to **mama broker**, engine `durable`, defaults (`dedup=true`)",
}
#: what, compared with, field, aim, the aim is a lower limit
GOALS = [
    ("simple", "literal", "rate", 2.0, True), ("simple", "forward", "rate", 0.8, True),
    ("durable", "forward", "rate", 0.6, True),
    ("simple-latency", "forward-latency", "p50_us", 2.0, False),
    ("durable-latency", "forward-latency", "p50_us", 2.0, False),
    ("write-durable", "write-nats-message", "rate", 0.6, True), ("write-durable", "write-nats", "rate", 0.6, True),
    ("write-durable-dedup", "write-nats-dedup", "rate", 0.6, True),
]  # fmt: skip


def table(result: Result, size: int) -> list[str]:
    """A row a way that was measured with messages of ``size``; no table where none was."""
    lines = [f"| {size:,} B a message | messages/s | broker µs | client µs |", "|---|---|---|---|"]
    for name, title in TITLES.items():
        rates = values(result, name, size, "rate").values()
        if not rates:
            continue
        server, client = (values(result, name, size, field).values() for field in ("server_us", "client_us"))
        lines.append(
            f"| {title} | {spread(rates)} "
            f"| {statistics.median(server):.1f} | {f'{statistics.median(client):.1f}' if client else ''} |"
        )
    return [*lines, ""] if len(lines) > 2 else []


def latencies(result: Result) -> list[str]:
    lines = ["| one message at a time, 100 B | p50 µs | p99 µs |", "|---|---|---|"]
    for name, title in TITLES.items():
        p50, p99 = (values(result, f"{name}-latency", 100, field).values() for field in ("p50_us", "p99_us"))
        if p50:
            lines.append(f"| {title} | {statistics.median(p50):.0f} | {statistics.median(p99):.0f} |")
    return [*lines, ""] if len(lines) > 2 else []


def fairness(result: Result) -> list[str]:
    lines = [
        "| beside 22,000 messages/s of 200 B | their reader | p50 ms | p99 ms | most ms |",
        "|---|---|---|---|---|",
    ]
    for mode, what in (("fair", "takes nothing"), ("resume", "takes nothing for 3 s, then all")):
        for name, title in TITLES.items():
            found = [values(result, f"{name}-{mode}", 200, field).values() for field in ("p50_us", "p99_us", "most_us")]
            if found[0]:
                shown = " | ".join(f"{statistics.median(one) / 1000:.1f}" for one in found)
                lines.append(f"| {title} | {what} | {shown} |")
    return [*lines, "", "Aim: p99 at most 20 ms on two cores.", ""] if len(lines) > 2 else []


def goals(result: Result) -> list[str]:
    lines = ["| goal at 100 B | aim | measured |", "|---|---|---|"]
    for name, other, field, aim, least in GOALS:
        measured = ratio(result, name, other, 100, field)
        if measured is not None:
            lines.append(f"| `{name}` to `{other}` | {'≥' if least else '≤'} {aim:g} | {measured:.2f} |")
    return lines if len(lines) > 2 else []


def text(result: Result) -> str:
    tables = [line for size in sorted({run["size"] for run in result["runs"]}) for line in table(result, size)]
    return "\n".join([*tables, *latencies(result), *fairness(result), *goals(result)])


def markdown(result: Result) -> str:
    """Of messages of 100 bytes; brokers by hand, and other ways to publish to NATS, are there for the goals."""
    left_out = ("literal", "write-nats", "write-nats-message")
    shown = {**result, "runs": [run for run in result["runs"] if run["name"] not in left_out]}
    return part(result["facts"], "Spark, Python, pyzmq, nats-server", *table(shown, 100))


def write(result: Result) -> None:
    write_part("malamute", markdown(result))


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
