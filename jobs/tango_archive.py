"""Writes events of Tango devices to Delta tables: an archive, and the configurations of its attributes.

Needs a log that mama record writes, and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/tango_archive.py --conf-file conf/tango-archive.toml

Each record of ``mama record`` becomes one row, exactly once, unless ``[strategies]`` thin out the readings of an
attribute. Queries: ``docs/how-to/query-the-tango-archive.md``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import mama_spark
from mama_spark.conf_file import as_options, load
from mama_spark.tango.archive_strategies import Reading, parse_strategies, strategy_of, text_of
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.window import Window

NAME = "concat('tango://', tango.tango_host, '/', device, '/', attribute)"
COLUMNS = [
    "kind", "tango.tango_host", "device", "attribute", "event", "tango.origin", "time", "to_date(time) AS day",
    "coalesce(tango.data_time, unix_micros(time) * 1000) AS data_time", "tango.received", "tango.quality",
    "tango.data_type", "tango.format", "tango.dim_x", "tango.dim_y",  # and of a scalar, whatever its type, as a number:
    """CASE WHEN tango.format = 'SCALAR' THEN coalesce(get(tango.value_double, 0), get(tango.value_long, 0),
       double(get(tango.value_ulong, 0)), double(get(tango.value_bool, 0))) END AS value""",
    *(f"tango.{part}_{kind}" for part in ("value", "set")
      for kind in ("double", "long", "ulong", "bool", "string", "encoded")),
    "tango.errors", "tango.gap_count", "tango.cause", "stream", "sequence",
    f"CASE WHEN attribute IS NOT NULL THEN xxhash64({NAME}) END AS att_conf_id",
]  # fmt: skip
#: Of a configuration: column in the table -> its name in the event.
CONFIGURATION = {
    "data_type": "data_type", "data_format": "data_format", "writable": "writable", "label": "label", "unit": "unit",
    "standard_unit": "standard_unit", "display_unit": "display_unit", "format": "format", "description": "description",
    "min_value": "min_value", "max_value": "max_value", "enum_labels": "enum_labels",
    "archive_rel_change": "arch_event.rel_change", "archive_abs_change": "arch_event.abs_change",
    "archive_period": "arch_event.period",
}  # fmt: skip


def rows(spark: SparkSession, options: dict[str, Any], devices: list[str]) -> DataFrame:
    read = spark.readStream.format("mamasub").options(**as_options(options)).option("tango", "true")
    named = read.load().selectExpr(
        "*", "tango.kind AS kind", "tango.device AS device", "tango.attribute AS attribute", "tango.event AS event",
        "coalesce(timestamp_micros(tango.data_time div 1000), timestamp) AS time",
    )  # fmt: skip
    wanted = named.where("device IS NOT NULL OR kind = 'corrupt'")
    patterns = "|".join(".*".join(map(re.escape, device.split("*"))) for device in devices)
    return wanted.where(wanted.device.rlike(f"(?i)^({patterns})$") | (wanted.kind == "corrupt")) if devices else wanted


def thin_out(events: DataFrame, table: dict[str, Any]) -> DataFrame:
    """Keep the readings that the strategies want: of each attribute and type of event beside the last one kept."""
    strategies = parse_strategies(table)

    def select(key: tuple[Any, ...], batches: Iterable[Any], state: Any) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]  # only strategies need it

        found = pd.concat(list(batches), ignore_index=True).sort_values("sequence")
        strategy = strategy_of(strategies, f"{key[1]}/{key[2]}") if key[0] == "event" else None
        if strategy is not None:
            last = Reading(*json.loads(state.get[0])) if state.exists else None
            kept, last = strategy.select(last, map(reading, found.to_dict("records")))
            state.update((json.dumps(last),))
            found = found[kept]
        yield found

    key = ["kind", "device", "attribute", "event", "tango_host"]
    kept = events.groupBy(*key).applyInPandasWithState(select, events.schema, "last string", "append", "NoTimeout")
    # a column that is computed again, since a write by partition cannot sort rows as they come from Python
    return kept.withColumn("day", F.to_date("time"))


def reading(row: dict[str, Any]) -> Reading:
    numbers = next(
        (row[f"value_{t}"] for t in ("double", "long", "ulong", "bool") if row[f"value_{t}"] is not None), ()
    )
    others = [list(row[f"value_{t}"]) for t in ("string", "encoded") if row[f"value_{t}"] is not None]
    return Reading(int(row["data_time"]), row["quality"], tuple(map(float, numbers)), text_of(others or None))


def add_configurations(batch: DataFrame, path: str) -> None:
    """Add configurations to the table of all, each with the time until which it held. What is there is not added."""
    columns = [f"get_json_object(tango.detail, '$.{name}') AS {column}" for column, name in CONFIGURATION.items()]
    parts = [f"split_part(device, '/', {n}) AS {name}" for n, name in enumerate(("domain", "family", "member"), 1)]
    found = batch.selectExpr(
        f"xxhash64({NAME}) AS att_conf_id", f"{NAME} AS att_name", "tango.tango_host AS cs_name", *parts,
        "attribute AS name", "timestamp_micros(tango.received div 1000) AS started", *columns,
    )  # fmt: skip
    if found.isEmpty():
        return
    spark = batch.sparkSession
    before = spark.read.format("delta").load(path) if has_table(spark, path) else None
    every = found if before is None else before.drop("stopped").unionByName(found)
    order = Window.partitionBy("att_conf_id").orderBy("started")
    every = every.withColumn("hash", F.xxhash64(F.to_json(F.struct(*CONFIGURATION))))
    every = every.withColumn("hash_before", F.lag("hash").over(order)).where("hash_before IS DISTINCT FROM hash")
    every = every.drop("hash", "hash_before").withColumn("stopped", F.lead("started").over(order)).localCheckpoint()
    if before is None or every.count() != before.count():
        every.coalesce(1).write.format("delta").mode("overwrite").save(path)


def has_table(spark: SparkSession, path: str) -> bool:
    try:
        spark.read.format("delta").load(path)
    except AnalysisException as error:
        if error.getCondition() in ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND"):
            return False
        raise
    return True


def archive(spark: SparkSession, conf: dict[str, dict[str, Any]]) -> list[StreamingQuery]:
    settings, stream, options = conf["archive"], conf["stream"], conf["mamasub"]
    devices, path, checkpoint = settings.get("devices", []), settings["path"], stream["checkpointLocation"]
    when = stream.get("trigger", "10 seconds")
    trigger: Any = {"availableNow": True} if when == "availableNow" else {"processingTime": when}
    events = rows(spark, options, devices).selectExpr(*COLUMNS)
    events = thin_out(events, conf["strategies"]) if conf["strategies"] else events
    writer = events.writeStream.format("delta").partitionBy("day").option("mergeSchema", "true").trigger(**trigger)
    queries = [writer.start(path, checkpointLocation=checkpoint)]

    of_configurations = options if "topics" in options else {**options, "topics": "*.*.*.*.*.*.attr_conf"}
    found = rows(spark, of_configurations, devices).where("event = 'attr_conf' AND tango.detail IS NOT NULL")
    table = settings.get("attConf", f"{path}_att_conf")
    writer = found.writeStream.foreachBatch(lambda batch, _: add_configurations(batch, table)).trigger(**trigger)
    return [*queries, writer.start(checkpointLocation=f"{checkpoint}_att_conf")]


def session(builder: SparkSession.Builder) -> SparkSession:
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    return builder.getOrCreate()


def run(spark: SparkSession, conf: dict[str, dict[str, Any]]) -> None:
    mama_spark.register(spark)
    spark.streams.resetTerminated()  # of queries that this session had before
    queries = archive(spark, conf)
    while any(query.isActive for query in queries):
        spark.streams.awaitAnyTermination(10)  # raises if one failed
        spark.streams.resetTerminated()
    for query in queries:
        query.awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, ("mamasub", "archive", "stream", "strategies"))
    spark = session(SparkSession.builder.appName("mama-tango-archive"))
    with mama_spark.stopping(spark):
        run(spark, conf)


if __name__ == "__main__":
    main()
