"""``python -m bench.tango.report RESULT.json``: keep a result of ``bench.tango``, and write its part of the page."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable

from ..result import RESULTS, Result, keep, part, spread, write_part

KEPT = RESULTS / "tango-reference.json"
TITLES = {
    "decode": "decode in batches, 1 attribute",
    "decode-many": "decode in batches, 1,000 attributes of four types",
    "decode-count": "decode in batches and look at every counter, 1,000 attributes",
    "decode-single": "decode one by one",
    "encode": "encode in batches",
    "encode-single": "encode one by one, all four frames",
    "receive": "**subscriber** that decodes and numbers events, stores nothing, 40 attributes",
    "record-nats": "**`mama record`** to JetStream, stored on disk",
    "record-durable": "**`mama record`** to `mama broker`, engine `durable`",
    "push": "**event source**, nobody subscribed",
    "send": "**event source**, its subscriber not connected",
    "client": "**event source** to one `tango.DeviceProxy`",
    "client-tango": "a device server of PyTango to one `tango.DeviceProxy`",
}
#: What the page shows: programs, and what bounds them.
ON_PAGE = ("receive", "record-nats", "record-durable", "send", "client", "client-tango")
#: events a second, at least
GOALS = {
    "decode": 1_000_000, "decode-many": 1_000_000, "receive": 100_000, "record-nats": 50_000, "record-durable": 50_000,
    "push": 80_000, "send": 80_000, "client": 30_000,
}  # fmt: skip
_SPENT = ("producer_us", "source_us", "reader_us", "client_us", "log_us")


def values(result: Result, name: str, field: str) -> list[float]:
    """One a round; none where it did not run."""
    return [run[field] for run in result["runs"] if run["name"] == name and field in run]


def table(result: Result, names: Iterable[str]) -> list[str]:
    lines = ["| way | events/s | processor µs an event |", "|---|---|---|"]
    for name in names:
        rates = values(result, name, "rate")
        if not rates:
            continue
        spent = {field.removesuffix("_us"): values(result, name, field) for field in _SPENT}
        told = ", ".join(f"{who} {statistics.median(each):.1f}" for who, each in spent.items() if each)
        lines.append(f"| {TITLES[name]} | {spread(rates)} | {told} |")
    return lines


def goals(result: Result) -> list[str]:
    lines = ["| events/s of | aim | measured |", "|---|---|---|"]
    for name, aim in GOALS.items():
        if rates := values(result, name, "rate"):
            lines.append(f"| {TITLES[name]} | ≥ {aim:,} | {statistics.median(rates):,.0f} |")
    return lines


def text(result: Result) -> str:
    return "\n".join([*table(result, TITLES), "", *goals(result)])


def markdown(result: Result) -> str:
    return part(result["facts"], "Python, numpy, pyzmq, PyTango, nats-server", *table(result, ON_PAGE))


def write(result: Result) -> None:
    write_part("tango", markdown(result))


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
