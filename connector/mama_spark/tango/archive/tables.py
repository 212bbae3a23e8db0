"""The tables of an archive: what ``mamasub`` reads of devices, and the configurations of attributes, each with the
times between which it held."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

#: Full name of an attribute, in SQL.
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


def rows(spark: SparkSession, options: dict[str, str], devices: list[str]) -> DataFrame:
    """Records of the devices, and those that cannot be read, before :data:`COLUMNS` are taken of them.

    :param options: of ``mamasub``
    :param devices: names with ``*``; none = all devices
    """
    read = spark.readStream.format("mamasub").options(**options).option("tango", "true")
    named = read.load().selectExpr(
        "*", "tango.kind AS kind", "tango.device AS device", "tango.attribute AS attribute", "tango.event AS event",
        "coalesce(timestamp_micros(tango.data_time div 1000), timestamp) AS time",
    )  # fmt: skip
    wanted = named.where("device IS NOT NULL OR kind = 'corrupt'")
    patterns = "|".join(".*".join(map(re.escape, device.split("*"))) for device in devices)
    return wanted.where(wanted.device.rlike(f"(?i)^({patterns})$") | (wanted.kind == "corrupt")) if devices else wanted


#: Of a configuration: column in the table -> its name in the event.
CONFIGURATION = {
    "data_type": "data_type", "data_format": "data_format", "writable": "writable", "label": "label", "unit": "unit",
    "standard_unit": "standard_unit", "display_unit": "display_unit", "format": "format", "description": "description",
    "min_value": "min_value", "max_value": "max_value", "enum_labels": "enum_labels",
    "archive_rel_change": "arch_event.rel_change", "archive_abs_change": "arch_event.abs_change",
    "archive_period": "arch_event.period",
}  # fmt: skip


def configurations(spark: SparkSession, options: dict[str, str], devices: list[str]) -> DataFrame:
    """Records with configurations of attributes of the devices; parameters as of :func:`rows`."""
    asked = options if "topics" in options else {**options, "topics": "*.*.*.*.*.*.attr_conf"}
    return rows(spark, asked, devices).where("event = 'attr_conf' AND tango.detail IS NOT NULL")


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
    """Whether a Delta table is there."""
    try:
        spark.read.format("delta").load(path)
    except AnalysisException as error:
        if error.getCondition() in ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND"):
            return False
        raise
    return True
