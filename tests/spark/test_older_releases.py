"""What an older release left on disk is read and carried on: stores of servers, checkpoints, flight logs."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from mama_spark.flightlog.maintenance import adopt_orphans
from pyspark.sql import SparkSession

from tests.data.record import Middleware, discover, server
from tests.support.flight_logs import rows

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nats", "malamute"])
@pytest.mark.parametrize("release", sorted(p.name for p in DATA.iterdir() if (p / "nats").is_dir()))
def test_a_pipe_and_a_discovery_of_an_older_release_go_on_where_they_were(
    spark: SparkSession, tmp_path: Path, release: str, name: str
) -> None:
    """The old run took 20 rows. Nothing is read, published or recorded again, and what was staged is adopted."""
    shutil.copytree(DATA / release / name, tmp_path / name)
    middleware = Middleware(tmp_path / name)
    log = middleware.folder / "flight_log"
    with server(middleware.command(tmp_path)) as url:
        middleware.run(spark, url, 20)
        events = discover(spark, url, middleware.folder)
        options = middleware.options(url, "outgoing", "out.>")
        stored = spark.read.format("mamasub").options(**options).load().select("topic", "value").collect()
    assert sorted(int(bytes(r.value)) for r in stored) == list(range(30))
    assert {r.topic for r in stored} == {"out.0", "out.1", "out.2"}
    assert {e.source_name for e in events if e.kind == "source"} == {"pipe"}, "only what the new run announced"
    assert not [e for e in events if e.kind in ("gap", "image_end")], "the image is not told again"

    assert sorted(r["read_as"] for r in rows(log) if r["kind"] == "flight") == list(range(1, 31))
    adopted = adopt_orphans(str(log), {}, timedelta(0))
    assert [a.rows for a in adopted.parts] == [4], "a task of the older release was killed before its commit"
    flights = [r for r in rows(log) if r["kind"] == "flight"]
    assert len(flights) == 34
    assert {r["event"] for r in flights} == {"acked"}
