"""``python -m mama_spark.jobs.tango_demo``, as its users run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 900.0


@pytest.mark.explore
def test_the_demo_reports_what_is_missing_and_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mama_spark.jobs.tango_demo", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    shares = re.findall(r"^  (\w+) +([\d,]+) recorded +([\d,]+) lost", done.stdout, re.MULTILINE)
    assert {name for name, *_ in shares} >= {"temperature", "pressure", "current", "profile"}
    assert all(int(recorded.replace(",", "")) for _, recorded, _ in shares)
    causes = re.findall(r"^  [\d:]+ +(\w+) +[\d,]+ lost  (\w+)$", done.stdout, re.MULTILINE)
    assert ("temperature", "away") in causes
    assert ("profile", "way") in causes  # at the end, too: nothing follows the burst
    (recorded,) = [int(n.replace(",", "")) + int(m.replace(",", "")) for name, n, m in shares if name == "profile"]
    assert recorded == 20_000
    assert "vega" in (tmp_path / "demo" / "report.html").read_text()
