"""The memory of staging and of the report is bounded, whatever goes through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STAGE = """
import os, sys
import numpy as np, pyarrow as pa
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.staging import Staging
from tests.support.flight_logs import BATCH, T0, flights
from tests.support.processes import resident_memory

def rss():
    return resident_memory(os.getpid()) / 1e6

n = 10_000
staging = Staging(sys.argv[1], {}, BATCH, 0, 0)
seen = {}
for i in range(1000):
    staging.add_flights(flights(n, str(i), at=T0 + 10_000 * i))
    if i in (99, 999):
        seen[i] = rss()
parts = staging.close()
assert sum(p.rows for p in parts) == 10_000_000
commit(sys.argv[1], {}, BATCH, parts)
print("STAGED", seen[99], seen[999])
"""

REPORT = """
import sys
from mama_spark.flightlog.reading import summarise
from tests.support.memory import peak_memory
found = summarise(sys.argv[1], {})
assert found.count("acked") == 10_000_000
print("REPORT", peak_memory() / 1e6)
"""


def run(script: str, table: Path) -> list[float]:
    done = subprocess.run([sys.executable, "-c", script, str(table)], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()[1:]]


@pytest.mark.explore
@pytest.mark.timeout(3600)
def test_ten_million_rows_are_staged_and_summed_up_in_bounded_memory(tmp_path: Path) -> None:
    """Staging: flat within 50 MB from one to ten million rows. Report: below 1 GB, on a log of ten million."""
    early, late = run(STAGE, tmp_path / "log")
    print(f"staging: {early:.0f} MB after 1 million rows, {late:.0f} MB after 10 million")
    assert abs(late - early) <= 50
    (peak,) = run(REPORT, tmp_path / "log")
    print(f"report: peak of {peak:.0f} MB")
    assert peak <= 1000
