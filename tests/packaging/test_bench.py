"""The benchmark runs: a smoke run of some contenders, and what its report says of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from bench import report

ROOT = Path(__file__).parents[2]


def test_a_quick_run_measures_counts_and_reports(tmp_path: Path) -> None:
    contenders = "sink-message,mamasub,sub-simple,log,fetch" + (
        ",c-acks" if shutil.which("gcc") else ""
    )  # `make bench` installs a compiler
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.run", "--quick", "--only", contenders, "--micro", "0", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert {r["name"] for r in result["runs"]} == set(contenders.split(","))
    assert all(r["rows"] >= 200 and r["rate"] > 0 for r in result["runs"])
    assert "| 100 B | **mamapub**" in report.text(result)
    assert report.svg(result).startswith("<svg")
    assert "| 100 B | **mamasub**" in report.text(result)
    assert "| goal at 100 B" in report.markdown(result)
