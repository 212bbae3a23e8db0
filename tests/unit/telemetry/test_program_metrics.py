"""What recorders and sources count, in the text that Prometheus reads."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter

import pytest
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.openmama.recorder.record_source import MamaRecorderCounts
from mama_spark.openmama.source.server import measure as measure_mama_source
from mama_spark.tango.recorder.record_source import TangoRecorderCounts
from mama_spark.tango.source.replay_service import measure as measure_tango_source
from mama_spark.telemetry.exposition import Metric, exposition
from mama_spark.telemetry.metrics_server import served_metrics

from tests.support.tables import each

WRITTEN = {"recorded": 2, "stored": 3, "waiting": 4, "gaps": 6, "refused": 7}
ALL: dict[str, list[Metric]] = {
    "tango": TangoRecorderCounts(**WRITTEN, subscriptions=8, not_accepted=1, dropped=5).metrics(
        {"recorder": "r", "network": "tango"}
    ),
    "openmama": MamaRecorderCounts(**WRITTEN, symbols=1, images=2, unreadable=8).metrics(
        {"recorder": "r", "network": "oz"}
    ),
    "tango source": measure_tango_source("mama/source", "S", 9, 4, 2, 2, 1, 6, 1, 5, 4),
    "mama source": measure_mama_source("OM", Counter({"records": 9, "bad records": 2}), 3, 4, 5),
}  # fmt: skip


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split(r"[{ ]", line)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@each("metrics", ALL.values())
def test_every_metric_is_text_of_prometheus_with_its_kind(metrics: list[Metric]) -> None:
    text = exposition(metrics)
    assert values(text) == {metric.name: value for metric in metrics for _, value in metric.samples}
    for metric in metrics:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert f"# TYPE {metric.name} {metric.kind}" in text
        assert f"# HELP {metric.name} {metric.help}" in text


def test_what_nobody_hears_is_not_sent() -> None:
    assert values(exposition(ALL["tango source"]))["mama_tango_source_messages_total"] == 4


def test_recorders_count_the_same_things_under_the_same_names() -> None:
    tango, openmama = ({metric.name for metric in ALL[kind]} for kind in ("tango", "openmama"))
    assert {f"mama_recorder_{name}" for name in ("stored_total", "waiting", "gaps_total", "refused_total")} <= (
        tango & openmama
    )


def test_metrics_are_served_while_the_block_runs_and_only_where_an_address_is_given() -> None:
    said: list[str] = []
    with served_metrics("127.0.0.1:0", lambda: ALL["tango"], said.append, said.append):
        [line] = said
        with urllib.request.urlopen(line.removeprefix("metrics: "), timeout=60) as answer:
            assert values(answer.read().decode())["mama_recorder_stored_total"] == 3
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(line.removeprefix("metrics: "), timeout=60)
    with served_metrics(None, list, said.append, said.append):
        assert said == [line]


def test_all_interfaces_are_warned_of_and_a_wrong_address_is_refused() -> None:
    warnings: list[str] = []
    with served_metrics("0.0.0.0:0", list, lambda text: None, warnings.append):
        assert warnings == ["the metrics at 0.0.0.0:0 are on all interfaces and have no login: name one interface"]
    for address, error in (("nonsense", ConfigError), ("192.0.2.1:1", Unavailable)):
        with pytest.raises(error, match="metrics"), served_metrics(address, list, warnings.append, warnings.append):
            pass
