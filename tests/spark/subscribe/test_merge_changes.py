"""A Delta table that follows changes of keys."""

from __future__ import annotations

import random
from pathlib import Path

import mama_spark
from pyspark.sql import DataFrame, SparkSession

Change = tuple[str, str | None, int, str]


def batch(spark: SparkSession, changes: list[Change]) -> DataFrame:
    schema = "key string, value string, revision long, operation string"
    return spark.createDataFrame(changes, schema)


def test_the_table_has_the_last_change_of_each_key_whatever_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table `of` keys")
    merge = mama_spark.merge_changes(path)
    batches: list[list[Change]] = [
        [("a", "1", 1, "put"), ("b", "1", 2, "put"), ("a", "2", 3, "put")],
        [("b", None, 4, "delete"), ("c", "1", 5, "put"), ("c", None, 6, "purge"), ("c", "2", 7, "put")],
    ]
    for number in (0, 1, 0):
        random.Random(number).shuffle(batches[number])
        merge(batch(spark, batches[number]), number)
    found = spark.read.format("delta").load(path).orderBy("key").collect()
    assert [tuple(row) for row in found] == [("a", "2", 3, "put"), ("b", None, 4, "delete"), ("c", "2", 7, "put")]
    views = spark.sql("SHOW VIEWS LIKE 'mama_changes*'").collect()
    assert not views


def test_of_the_rows_that_one_message_packs_the_last_one_counts(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("t", f"row {n}", 5, n) for n in (0, 3, 2, 1)]
    schema = "topic string, value string, sequence long, pack_index int"
    merge = mama_spark.merge_changes(f"{tmp_path}/topics", key="topic", revision="sequence")
    merge(spark.createDataFrame(rows, schema), 0)
    assert [row["value"] for row in spark.read.format("delta").load(f"{tmp_path}/topics").collect()] == ["row 3"]


def test_few_keys_take_few_tasks_though_the_session_is_not_adaptive(spark: SparkSession, tmp_path: Path) -> None:
    """As the session of a query in Spark 4.0."""
    context, partitions = spark.sparkContext, "spark.sql.shuffle.partitions"
    before = spark.conf.get(partitions)
    spark.conf.set(partitions, "97")
    context.setJobGroup("merge of few keys", "")
    try:
        mama_spark.merge_changes(f"{tmp_path}/few")(batch(spark, [("a", "1", 1, "put"), ("b", "1", 2, "put")]), 0)
    finally:
        spark.conf.set(partitions, str(before))
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("merge of few keys")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    tasks = [stage.numTasks for stage in stages if stage is not None]
    assert tasks
    assert max(tasks) < 97
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
