"""The formats on a cluster of Spark: executors are processes of their own, and one is killed in the middle of a
write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
from mama_spark.testing.waiting import eventually

from tests.spark.cluster.conftest import PATIENCE, Write
from tests.support.spark.sink_harness import counts, flights


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_executor_that_is_killed_in_the_middle_of_a_write_loses_and_doubles_nothing(
    write: Callable[..., Write],
) -> None:
    announced = {"announce": "true", "sourceName": "orders-of-a-cluster"}
    one = write(options=announced, steps=["publish", "read_stream", "discover"])
    with one.submit() as application:
        executor = one.busy(application, 2_000)[0]
        executor.kill()
        eventually(lambda: not executor.is_running(), "the executor has ended")
        assert one.stored() < one.rows
        one.open()
        application.wait(PATIENCE)
    one.conserved()
    assert max(counts(flights(one.log), "task_attempt")) >= 1
    assert one.results()["discovered"]["source"] >= 1
    written = pq.read_table(one.folder / "read").to_pylist()
    assert Counter(row["value"] for row in written) == Counter(f"order {n}" for n in range(one.rows))
