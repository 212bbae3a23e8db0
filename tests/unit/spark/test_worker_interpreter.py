"""Which interpreter the workers run after a session was registered."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import mama_spark
import pytest
from pyspark import SparkConf

NOBODY = {"PYSPARK_PYTHON": None, "PYSPARK_DRIVER_PYTHON": None}


@pytest.mark.parametrize(
    ("master", "conf", "environment", "runs"),
    [
        ("local[2]", {}, {}, sys.executable),
        ("local[2]", {}, {"PYSPARK_PYTHON": "/mine"}, "python3"),
        ("local[2]", {}, {"PYSPARK_DRIVER_PYTHON": "/mine"}, "python3"),
        ("local[2]", {"spark.pyspark.python": "/mine"}, {}, "python3"),
        ("spark://host:7077", {}, {}, "python3"),  # executors may have no such path
    ],
)
def test_workers_on_one_machine_run_the_interpreter_of_the_driver_where_nobody_names_one(
    master: str, conf: dict[str, str], environment: dict[str, str], runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (NOBODY | environment).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    spark: Any = MagicMock()
    given = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    spark.sparkContext.configure_mock(master=master, pythonExec="python3", defaultParallelism=2)
    spark.sparkContext.getConf.return_value = given
    monkeypatch.setattr("mama_spark.spark.register._activate", lambda spark: None)
    mama_spark.register(spark)
    assert spark.sparkContext.pythonExec == runs
