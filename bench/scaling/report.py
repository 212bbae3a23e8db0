"""``python -m bench.scaling.report RESULT.json``: keep a result of ``bench.scaling``, write its part of the page."""

from __future__ import annotations

import json
import math
import sys

from bench.report import KEPT as RATES
from bench.result import RESULTS, Result, keep, part, write_part

from .model import Coefficients, cluster, limits
from .simulations import SIMULATIONS

KEPT = RESULTS / "scaling-reference.json"
TARGETS = (100_000, 1_000_000, 10_000_000)


def growth(measured: list[dict[str, float]], value: str) -> float | None:
    """The power of the size with which a value grows between the two largest sizes: 1 = linear; None: there is one."""
    if len(measured) < 2:
        return None
    one, two = measured[-2:]
    return math.log(two[value] / one[value]) / math.log(two["size"] / one["size"])


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if value >= 1 else 4}f}".rstrip("0").rstrip(".")


def simulations(result: Result) -> list[str]:
    """A table for each simulation."""
    lines: list[str] = []
    for name, measured in result["measured"].items():
        one = SIMULATIONS[name]
        lines += [
            f"**{one.title}**",
            "",
            f"| {one.unit} | " + " | ".join(one.columns.values()) + " | MB of the process |",
        ]
        lines.append("|" + "--:|" * (len(one.columns) + 2))
        for run in measured:
            values = [f"{run['size']:,.0f}", *(_number(run[column]) for column in one.columns)]
            lines.append("| " + " | ".join([*values, f"{run['memory_mb']:,.0f}"]) + " |")
        power = growth(measured, one.grows) if one.grows else None
        if power is not None and one.grows:
            lines += ["", f"{one.columns[one.grows]}: grows with the power {power:.2f} of the number at the end."]
        lines.append("")
    return lines


def clusters(c: Coefficients) -> list[str]:
    lines = [
        "| rows a second | streams | cores of servers | with three replicas | cores that publish | cores that read "
        "| flight log a day |",
        "|" + "--:|" * 7,
    ]
    for one in (cluster(c, rate) for rate in TARGETS):
        lines.append(
            f"| {one.rate:,} | {one.streams:,} | {_cores(one.server_cores)} | {_cores(one.replicated_cores)} "
            f"| {_cores(one.publish_cores)} | {_cores(one.read_cores)} | {_number(one.log_bytes_a_day / 1e12)} TB |"
        )
    return lines


def _cores(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def model(result: Result) -> list[str]:
    """The clusters, and the limits that a cluster of the largest size meets first."""
    c = Coefficients.of(json.loads(RATES.read_text()), result)
    return [
        *clusters(c), "",
        "| limit | rows/s to plan with |", "|---|--:|",
        *(f"| {what} | {float(f'{rate:.3g}'):,.0f} |" for rate, what in limits(c) if rate <= TARGETS[-2]), "",
        f"A million announced sources take {c.source / 1e3:.1f} GB in streams.",
    ]  # fmt: skip


def text(result: Result) -> str:
    return "\n".join(simulations(result))


def markdown(result: Result) -> str:
    return part(result["facts"], "deltalake", *model(result))


def write(result: Result) -> None:
    write_part("scaling", markdown(result))


if __name__ == "__main__":
    sys.exit(keep(KEPT, write))
