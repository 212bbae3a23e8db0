"""The simulations of growth measure what they say, and the page shows the kept result."""

from __future__ import annotations

import json
import math

import pytest

from bench.report import KEPT as RATES
from bench.scaling import brokers, report
from bench.scaling.model import A_STREAM, Coefficients, cluster, limits
from bench.scaling.simulations import SIMULATIONS

SMALL = {
    "partition_reports": 3, "micro_batches": 250, "billion_rows": 1_000_000, "flight_log_rows": 1_000, "topics": 50,
    "replicas": 3, "sources": 5, "streams": 5,
}  # fmt: skip


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_simulation_measures_all_that_its_table_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name_of in ("ROWS", "STREAM_ROWS"):
        monkeypatch.setattr(brokers, name_of, 1_000)
    one = SIMULATIONS[name]
    measured = one.measure(SMALL[name])
    assert measured.keys() == one.columns.keys()
    assert all(value >= 0 for value in measured.values())
    result = {"measured": {name: [{"size": SMALL[name], **measured, "memory_mb": 1.0}]}}
    assert f"| {SMALL[name]:,} |" in report.text(result)


def test_the_kept_result_has_every_simulation_and_size() -> None:
    kept = json.loads(report.KEPT.read_text())
    assert kept["measured"].keys() == SIMULATIONS.keys()
    for name, runs in kept["measured"].items():
        assert tuple(run["size"] for run in runs) == SIMULATIONS[name].sizes


def test_nothing_of_the_kept_result_grows_much_faster_than_its_number() -> None:
    """No column of any table. Processor time has some noise; what is quadratic has the power 2."""
    kept = json.loads(report.KEPT.read_text())["measured"]
    powers = {
        (name, column): report.growth(runs, column)
        for name, runs in kept.items()
        for column in (*SIMULATIONS[name].columns, "memory_mb")
    }
    assert all(power is not None and power < 1.2 for power in powers.values()), powers


def test_the_growth_is_the_power_of_the_size() -> None:
    runs = [{"size": size, "line": 3.0 * size, "square": size**2, "flat": 2.0} for size in (1, 10.0, 100.0)]
    found = [report.growth(runs, value) for value in ("line", "square", "flat")]
    assert all(math.isclose(a, b) for a, b in zip(filter(None, found[:2]), (1, 2), strict=True))
    assert found[2] == 0
    assert report.growth(runs[:1], "line") is None


def test_a_cluster_of_ten_times_the_rate_is_ten_times_as_large() -> None:
    c = Coefficients.of(json.loads(RATES.read_text()), json.loads(report.KEPT.read_text()))
    one, ten = cluster(c, 1_000_000), cluster(c, 10_000_000)
    assert (one.streams, ten.streams) == (8, 80)
    assert (one.partitions, ten.partitions) == (40, 400)
    assert math.isclose(10 * one.server_cores, ten.server_cores)
    assert math.isclose(10 * one.checkpoint, ten.checkpoint)
    assert one.replicated_cores > one.server_cores
    rates = [rate for rate, _ in limits(c)]
    assert rates == sorted(rates)
    assert rates[0] == A_STREAM
