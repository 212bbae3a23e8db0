"""The benchmark runs: a smoke run of some contenders, and what its report says of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.packed import report as packed_report

ROOT = Path(__file__).parents[2]


def test_a_quick_run_measures_counts_and_reports(tmp_path: Path) -> None:
    contenders = "sink-message,mamasub,sub-simple,log,fetch" + (
        ",c-acks" if shutil.which("gcc") else ""
    )  # `make bench` installs a compiler
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.run", "--quick", "--only", contenders, "--micro", "0", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert {r["name"] for r in result["runs"]} == set(contenders.split(","))
    assert all(r["rows"] >= 200 and r["rate"] > 0 for r in result["runs"])
    assert "| 100 B | **mamapub**" in report.text(result)
    assert report.svg(result).startswith("<svg")
    assert "| 100 B | **mamasub**" in report.text(result)
    assert "| goal at 100 B" in report.markdown(result)


def packed_run(out: Path, ways: str, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.packed", "--quick", "--only", ways, "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(out.read_text())
    assert {r["name"] for r in result["runs"]} == set(ways.split(","))
    assert all(r["rows"] >= 2_000 and r["rate"] > 0 for r in result["runs"])
    return result


def test_a_quick_run_of_packed_messages_counts_their_rows(tmp_path: Path) -> None:
    ways = "drop,pack,nolog,lines,typed,mamasub,memory"
    result = packed_run(tmp_path / "result.json", ways, "--sizes", "100,0")
    page = packed_report.markdown(result)
    assert "| 100 B | **mamapub**, `pack=lines` |" in page
    assert "| 100 B | **mamasub** of packed rows |" in page
    assert "| 5 columns | **mamapub**, `pack=arrow`, typed |" in page
    assert "| 100 B: `mamasub` to `memory` | ≥ 0.7 |" in page
    assert "| 100 B | grouped by topic, packed, hashed |" in page
    assert "Kafka 4" not in page


@pytest.mark.slow
def test_a_quick_run_beside_kafka_counts_at_both_brokers(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "setup.sh", "kafka"], check=True, timeout=600)
    result = packed_run(tmp_path / "result.json", "kafka,kafka-tuned,lines,kafka-source", "--peers", "kafka")
    page = packed_report.markdown(result)
    assert "Kafka 4" in page
    assert "| 100 B: `lines` to `kafka-tuned` | ≥ 1.5 |" in page


def test_the_pages_show_the_kept_result_of_packed_messages() -> None:
    kept = json.loads(packed_report.KEPT.read_text())
    assert packed_report.PAGE.read_text() == packed_report.markdown(kept)
    overview = packed_report.OVERVIEW.read_text()
    assert overview == packed_report.with_table(overview, kept)
    assert "**mamapub**, `pack=arrow` with `value` |" in overview
