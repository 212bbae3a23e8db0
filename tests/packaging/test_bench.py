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
from bench.machine import TICKS, _cpu_between
from bench.malamute import report as malamute_report
from bench.packed import report as packed_report
from bench.pipe import report as pipe_report
from bench.result import PAGE, latency_ratio, with_part
from bench.scaling import report as scaling_report
from bench.steady import report as steady_report
from bench.steady.ways import FLIGHTS, PUBLISHING, READING, TYPED_FLIGHTS
from bench.tango import report as tango_report

ROOT = Path(__file__).parents[2]


def quick(module: str, folder: Path, *more: str) -> dict[str, Any]:
    """The result of a quick run."""
    out = folder / "result.json"
    command = [sys.executable, "-m", module, "--quick", "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def names(result: dict[str, Any]) -> set[str]:
    return {run["name"] for run in result["runs"]}


COMPILER = shutil.which("gcc") is not None  # `make bench` installs one


@pytest.mark.thorough
def test_a_quick_run_measures_counts_and_reports(tmp_path: Path) -> None:
    contenders = "sink-message,mamasub,sub-simple,log,fetch" + (",c-acks" if COMPILER else "")
    result = quick("bench.run", tmp_path, "--only", contenders, "--micro", "0")
    assert names(result) == set(contenders.split(","))
    assert all(r["rows"] >= 200 and r["rate"] > 0 for r in result["runs"])
    assert "| **mamapub**" in report.text(result)
    assert "| **mamasub**" in report.text(result)
    assert "| goal at 100 B" in report.text(result)


@pytest.mark.thorough
def test_a_quick_run_of_the_malamute_broker(tmp_path: Path) -> None:
    brokers = {"forward", "literal", "simple", "durable"}
    writes = {name for name in malamute_report.TITLES if name.startswith("write-")}
    only = [] if COMPILER else ["--only", "writes"]
    result = quick("bench.malamute", tmp_path, "--scale", "0.005", *only)
    beside = {f"{name}-{mode}" for name in ("simple", "durable") for mode in ("fair", "resume")}
    assert names(result) == writes | (brokers | {f"{name}-latency" for name in brokers} | beside if COMPILER else set())
    assert all(r.get("rate", r.get("p50_us")) > 0 for r in result["runs"])
    page = malamute_report.text(result)
    assert "| `df.write` to **mama broker**, engine `durable`, defaults (`dedup=true`) |" in page
    assert "| `write-durable-dedup` to `write-nats-dedup` | ≥ 0.6 |" in page
    if COMPILER:
        assert "| **mama broker**, engine `simple` |" in page
        assert "| **mama broker**, engine `durable` | takes nothing | " in page
        assert "| `simple-latency` to `forward-latency` | ≤ 2 |" in page


@pytest.mark.thorough
def test_a_quick_run_of_tango_events(tmp_path: Path) -> None:
    result = quick("bench.tango", tmp_path)
    assert names(result) == set(tango_report.TITLES)
    assert all(run["rate"] > 0 and run["events"] >= 2000 for run in result["runs"])
    lines = tango_report.text(result).splitlines()
    for name, title in tango_report.TITLES.items():
        _, *aims = [line for line in lines if line.startswith(f"| {title} |")]
        wanted = [f"| {title} | ≥ {tango_report.GOALS[name]:,} |"] if name in tango_report.GOALS else []
        assert [line[: len(aim)] for line, aim in zip(aims, wanted, strict=True)] == wanted


def packed_run(folder: Path, ways: str, *more: str) -> dict[str, Any]:
    result = quick("bench.packed", folder, "--only", ways, *more)
    assert names(result) == set(ways.split(","))
    assert all(r["rows"] >= 2_000 and r["rate"] > 0 for r in result["runs"])
    return result


@pytest.mark.thorough
def test_a_quick_run_of_packed_messages_counts_their_rows(tmp_path: Path) -> None:
    ways = "drop,pack,nolog,lines,typed,mamasub,memory"
    result = packed_run(tmp_path, ways, "--sizes", "100,0")
    page = packed_report.text(result)
    assert "| 100 B | **mamapub**, `pack=lines` |" in page
    assert "| 100 B | **mamasub** of packed rows |" in page
    assert "| 5 columns | **mamapub**, `pack=arrow`, typed |" in page
    assert "| 100 B: `mamasub` to `memory` | ≥ 0.7 |" in page
    assert "| grouping, packing, hashing |" in page
    assert packed_report.about_kafka(result) == []


@pytest.mark.explore
def test_a_quick_run_beside_kafka_counts_at_both_brokers(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "setup.sh", "kafka"], check=True, timeout=600)
    result = packed_run(tmp_path, "kafka,kafka-tuned,lines,kafka-source", "--peers", "kafka")
    assert "Kafka 4" in packed_report.about_kafka(result)[0]
    assert "| 100 B: `lines` to `kafka-tuned` | ≥ 1.5 |" in packed_report.text(result)


@pytest.mark.explore
def test_a_quick_run_in_steady_state_measures_every_aim(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "setup.sh", "kafka"], check=True, timeout=600)
    result = quick("bench.steady", tmp_path, "--peers", "kafka")
    assert all(run["seconds"] >= result["seconds"] for run in result["runs"])
    page = steady_report.text(result)
    assert page.count(" | ≥ ") + page.count(" | ≤ ") == len(steady_report.RATIOS) + 9


def process(parent: int, own: float, waited_for: float = 0.0) -> list[str]:
    """Fields of ``/proc/<pid>/stat`` from the state on, of so many seconds."""
    ticks = [round(own * TICKS), 0, round(waited_for * TICKS), 0]
    return ["S", str(parent), *["0"] * 9, *map(str, ticks)]


def test_processes_that_end_while_something_is_measured_take_nothing_away() -> None:
    before = {1: process(0, 5), 2: process(1, 10), 3: process(2, 40), 4: process(1, 7)}
    after = {1: process(0, 6, 11 + 8), 5: process(1, 2)}  # 2 and 4 were waited for; 3, whose parent ended, by nobody
    assert _cpu_between(before, after) == 1 + 1 + 1 + 2


def steady_run(name: str, size: int, rate: float, **more: float) -> dict[str, Any]:
    return {"name": name, "size": size, "round": 0, "rows": 1, "seconds": 15.5, "rate": rate, "client_us": 3.0,
            "server_us": 1.0, **more}  # fmt: skip


def test_the_report_of_steady_state_has_a_line_an_aim_that_was_measured() -> None:
    codecs = [
        steady_run(f"{way}-{codec}", FLIGHTS, rate, stored_bytes_per_row=stored)
        for way, codec, rate, stored in (
            ("lines", "lz4", 8, 50), ("lines", "zstd", 6, 30), ("kafka", "lz4", 3, 40), ("kafka", "zstd", 4, 30)
        )
    ]  # fmt: skip
    cold = [steady_run("lines", FLIGHTS, 1, stored_bytes_per_row=300)]
    cold += [steady_run("typed-zstd", TYPED_FLIGHTS, 1, stored_bytes_per_row=30)]
    runs = [steady_run("message", 100, 450_000), steady_run("c-acks", 100, 500_000), *codecs]
    runs += [steady_run("message-nolog", 100, rate) for rate in (400_000, 600_000)]
    runs += [steady_run("c-acks-beside", 100, 400_000, client_us=1.5)]
    steps = {"latestOffset": [2] * 3, "queryPlanning": [3] * 3, "addBatch": [80, 90, 95], "walCommit": [40] * 3,
             "commitOffsets": [45] * 3, "triggerExecution": [142, 152, 157]}  # fmt: skip
    pipes = [
        {"name": name, "round": 0, "latency_ms": {"p50": ms, "p99": ms}, "durations_ms": steps}
        for name, ms in (("log", 100), ("kafka", 200))
    ]
    given = {"facts": json.loads(packed_report.KEPT.read_text())["facts"], "seconds": 15.0}
    micro = {"sink": 110.0, "nothing": 85.0}
    result = {**given, "runs": runs, "cold": cold, "pipes": pipes, "micro_batch_ms": micro}
    page = steady_report.text(result)
    for line in (
        "| 100 B: `message` to `c-acks` | ≥ 0.92 | 0.90 | 1.84 |",
        "| 100 B: `message` to `message-nolog` | ≥ 0.95 | 0.90 | 1.90 |",
        "| `c-acks` | 0.60 | 0.80 | `message`: 1.12 |",
        "| flights, JSON: best codec to Kafka's best codec | ≥ 1.5 | 2.00 | 0.00 |",
        "| flights, JSON: bytes stored a row to Kafka's, lz4 | ≤ 1.1 | 1.25 |",
        "| flights: bytes of typed rows, zstd, to JSON lines, not compressed | ≤ 0.15 | 0.10 |",
        "| pipe, 1,000 messages/s: p99 to Kafka's | ≤ 0.8 | 0.50 |",
        "| pipe, 1,000 messages/s: `addBatch` | ≤ 80 ms | 90.00 ms |",
        "| Kafka to Kafka | 200 | 200 | 2 | 3 | 90 | 40 | 45 | 152 | 74: 0.37 | 103: 0.51 |",
        "| micro-batch of ten rows, more than an empty sink | ≤ 20 ms | 25.00 ms |",
    ):
        assert line in page
    assert "`off` to `c-acks-id`" not in page, "it was not measured"
    assert page.count("| flights, JSON | `lines") == 3, "two steady ones, and a cold one"
    assert "| `c-acks`, 100 B | `message` 0.90 |" in steady_report.markdown(result)


def test_a_ratio_of_latencies_is_the_median_of_those_of_the_rounds() -> None:
    measured = {"log": (10, 30, 50), "kafka": (10, 60, 25)}
    pipes = [
        {"name": name, "round": n, "latency_ms": {"p50": ms}}
        for name in measured
        for n, ms in enumerate(measured[name])
    ]
    assert latency_ratio(pipes, "log", "p50") == 1.0


def test_ways_that_were_measured_again_take_the_place_of_the_old_ones() -> None:
    facts = json.loads(packed_report.KEPT.read_text())["facts"]
    old = [steady_run(name, 100, 1.0) for name in ("message", "message-nolog", "c-acks", "c-acks-beside", "off")]
    old += [steady_run("lines", 100, 1.0), steady_run("kafka-tuned", 100, 1.0)]
    new = [steady_run("lines", 100, 6.0), steady_run("arrow", 100, 5.0), steady_run("kafka-tuned", 100, 2.0)]
    new += [steady_run(f"{name}-tuned", 100, 4.0) for name in ("lines", "arrow")]
    kept = {"facts": {**facts, "when": "2001-01-01"}, "seconds": 15.0, "runs": old, "cold": []}
    again = {"facts": {**facts, "when": "2002-02-02"}, "seconds": 15.0, "runs": new, "cold": []}
    found = steady_report.merged(kept, again)
    assert found["runs"] == [*old[:5], *new]
    page = steady_report.markdown(found)
    again_ways = "`arrow`, `arrow-tuned`, `kafka-tuned`, `lines`, `lines-tuned` of 100 B"
    assert found["sessions"] == [{"when": "2001-01-01"}, {"when": "2002-02-02", "ways": again_ways}]
    assert "Not all ways were measured together" in page
    assert "| `kafka-tuned`, 100 B | `lines` 3.00, " in page
    with pytest.raises(SystemExit, match=r"compared with each other: lines \(100 B\), kafka-tuned \(100 B\)"):
        steady_report.merged(kept, {**again, "runs": new[:2]})
    with pytest.raises(SystemExit, match=r"runs of 0\.1 s, the others of 15"):
        steady_report.merged(kept, {**again, "seconds": 0.1})
    with pytest.raises(SystemExit, match=r"measured with pyspark 9\.9, the others with"):
        steady_report.merged(kept, {**again, "facts": {**facts, "pyspark": "9.9"}})
    assert steady_report.merged(kept, {**again, "runs": [*old, *new], "seconds": 0.1})["seconds"] == 0.1


def test_each_ratio_of_the_aims_is_of_ways_that_are_measured() -> None:
    measured = {(steady.way.name, steady.size) for steady in PUBLISHING if steady.seconds}
    measured |= {(way.name, size) for way in READING for size in (100, 1000)}
    assert all({(name, size), (other, size)} <= measured for size, name, other, _ in steady_report.RATIOS)


@pytest.mark.parametrize(
    ("name", "module"),
    [("nats", report), ("steady", steady_report), ("packed", packed_report), ("pipe", pipe_report),
     ("malamute", malamute_report), ("tango", tango_report), ("scaling", scaling_report)],
)  # fmt: skip
def test_the_page_shows_the_kept_result(name: str, module: Any) -> None:
    page, kept = PAGE.read_text(), json.loads(module.KEPT.read_text())
    assert page == with_part(page, name, module.markdown(kept))
