"""The benchmark of the Malamute broker runs, and its report says what was measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.malamute import report

ROOT = Path(__file__).parents[2]
BROKERS = {"forward", "literal", "simple", "durable"}
WRITES = {name for name in report.TITLES if name.startswith("write-")}


@pytest.mark.thorough
def test_a_quick_run_measures_counts_and_reports(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") is not None  # `make bench` installs one
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.malamute", "--quick", "--scale", "0.005", "--out", str(out)]
    if not compiler:
        command += ["--only", "writes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    beside = {f"{name}-{mode}" for name in ("simple", "durable") for mode in ("fair", "resume")}
    expected = WRITES | (BROKERS | {f"{name}-latency" for name in BROKERS} | beside if compiler else set())
    assert {r["name"] for r in result["runs"]} == expected
    assert all(r.get("rate", r.get("p50_us")) > 0 for r in result["runs"])
    page = report.markdown(result)
    assert "| 100 B | `df.write` to **mama broker**, engine `durable`, defaults (`dedup=true`) |" in page
    assert "| `write-durable-dedup` to `write-nats-dedup` | ≥ 0.6 |" in page
    if compiler:
        assert "| 100 B | **mama broker**, engine `simple` |" in page
        assert "| **mama broker**, engine `durable` | takes nothing | " in page
        assert "| `simple-latency` to `forward-latency` | ≤ 2 |" in page
