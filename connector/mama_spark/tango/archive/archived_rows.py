"""Rows of an archive: what ``mamasub`` reads of devices, with the columns of the table."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession

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
