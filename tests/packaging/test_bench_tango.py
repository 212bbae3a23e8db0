"""The benchmark of Tango events runs, and its report says what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.tango import report

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_a_quick_run_measures_counts_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.tango", "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert {run["name"] for run in result["runs"]} == set(report.TITLES)
    assert all(run["rate"] > 0 and run["events"] >= 2000 for run in result["runs"])
    page = report.markdown(result)
    for name, title in report.TITLES.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {title} |")]
        assert (f"≥ {report.GOALS[name]:,}" if name in report.GOALS else "|  |") in line
