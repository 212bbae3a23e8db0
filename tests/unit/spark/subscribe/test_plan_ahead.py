"""Plans that are made while Spark writes the offsets of a micro-batch."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.memory import MemoryBroker
from mama_spark.spark.subscribe.data_source import PlanAhead
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.testing.waiting import eventually
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.spark.memory_harness import FilledLog


def raiser(error: Exception) -> Callable[[], int]:
    def make() -> int:
        raise error

    return make


def test_plan_is_given_once_and_for_its_key_alone() -> None:
    ahead: PlanAhead[int] = PlanAhead()
    assert ahead.take("a") is None
    ahead.begin("a", lambda: 1)
    assert ahead.take("a") == 1
    assert ahead.take("a") is None
    ahead.begin("a", lambda: 1)
    assert ahead.take("b") is None
    ahead.begin("a", lambda: 1)
    ahead.begin("b", lambda: 2)
    assert ahead.take("b") == 2


def test_plan_that_failed_is_made_anew_unless_the_time_is_over() -> None:
    ahead: PlanAhead[int] = PlanAhead()
    ahead.begin("a", raiser(ConfigError("changed in the middle")))
    assert ahead.take("a") is None
    ahead.begin("a", raiser(Unavailable("no answer")))
    with pytest.raises(Unavailable, match="no answer"):
        ahead.take("a")


def test_copy_in_another_process_has_no_plan() -> None:
    ahead: PlanAhead[int] = PlanAhead()
    ahead.begin("a", lambda: 1)
    copy: PlanAhead[int] = pickle.loads(pickle.dumps(ahead))
    assert copy.take("a") is None


def test_tasks_are_planned_before_spark_asks_and_are_those_of_a_reader_that_plans_then(log: FilledLog) -> None:
    log.put(40)
    first, second = (log.source(minPartitions="4", waitTimeout="200ms").streamReader(SCHEMA) for _ in range(2))
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    eventually(lambda: all(t.name != "mamasub-plan" for t in threading.enumerate()), "the end of the plan")
    expected = second.partitions(start, end)
    MemoryBroker.get(log.name).up = False
    assert first.partitions(start, end) == expected
    assert len(expected) == 4
    with pytest.raises(Unavailable):  # the plan was taken: it is made now
        first.partitions(start, end)
