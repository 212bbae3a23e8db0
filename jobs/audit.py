"""Compares a flight log with what is stored, as `mama audit` does, on a cluster: for logs of many millions of messages.

Needs a flight log, the streams that it names, and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/audit.py --conf-file conf/audit.toml

Its exit code is that of the command: 0 = all is stored, once; 1 = findings; 2 = nobody can tell.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import mama_spark
import pyarrow as pa
from mama_spark.audit.audit import STORED, ago, span_after, span_of, stored_columns
from mama_spark.audit.comparison import MARGIN, Comparison, FlightSelection, compare, rest_question, spans_question
from mama_spark.audit.result import Audit
from mama_spark.contracts.errors import ConfigError
from mama_spark.options import SubscribeOptions
from mama_spark.options.conf_file import as_options, load
from mama_spark.options.times import duration
from mama_spark.registry import log_bridge
from mama_spark.spark.read_flight_log import flight_log
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def as_stored(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of one stream, of mamasub, as what the comparison needs of them."""
    for rows in batches:
        if rows.num_rows:
            names = ("sequence", "timestamp", "topic", "value", "id", "headers")
            yield stored_columns(rows.column("stream")[0].as_py(), *(rows.column(name) for name in names))


def read(spark: SparkSession, options: dict[str, str], stream: str, after: int, up_to: int) -> DataFrame:
    """What a stream holds in a range of sequences."""
    ends = {"startingOffsets": json.dumps({stream: after + 1}), "endingOffsets": json.dumps({stream: up_to + 1})}
    given = {**options, **ends, "stream": stream, "unpack": "false", "failOnDataLoss": "false"}
    rows = spark.read.format("mamasub").options(**given).load()
    return rows.mapInArrow(as_stored, from_arrow_schema(STORED))


def age(wanted: dict[str, Any], name: str) -> float | None:
    """Seconds."""
    try:
        return duration.with_unit(wanted[name]) if name in wanted else None
    except ValueError as e:
        raise ConfigError(f"[audit] {name}: {e}, got {wanted[name]!r}") from None


def audit(spark: SparkSession, path: str, options: dict[str, str], wanted: dict[str, Any]) -> Audit:
    """:param wanted: the table [audit] of the configuration"""
    foreign, limit, later = bool(wanted.get("foreign")), int(wanted.get("limit", 5)), age(wanted, "later") or MARGIN
    period = (ago(age(wanted, name)) for name in ("since", "until"))
    selection = FlightSelection(wanted.get("query"), wanted.get("run"), wanted.get("batch"), *period)
    o = SubscribeOptions.parse({**options, "topics": ">"})

    def ask(sql: str) -> Iterator[dict[str, Any]]:
        return (row.asDict() for row in spark.sql(sql).toLocalIterator())

    flight_log(spark, path).createOrReplaceTempView("log")
    version = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]["version"]
    flights = list(ask(spans_question(selection, o.bridge_name)))
    found = Audit(path, version, list(ask(rest_question(selection, o.bridge_name))), limit)
    if not flights:
        return found
    bridge = log_bridge(o, o.wait_timeout)
    bridge.open()
    try:
        logs = {row["stream"]: bridge.log(row["stream"]) for row in flights}
        spans = {row["stream"]: span_of(logs[row["stream"]], row, later) for row in flights}
        parts = [read(spark, options, name, span.after, span.up_to) for name, span in spans.items()]
        stored = reduce(DataFrame.union, parts).persist()
        stored.createOrReplaceTempView("stored")
        print(f"{stored.count():,} messages read", flush=True)
        found.spans = {name: span_after(logs[name], span) for name, span in spans.items()}
    finally:
        bridge.close()
    compared = Comparison(selection, o.bridge_name, found.spans, foreign=foreign)
    compare(found, compared, ask, 1 << 62, unnumbered=any(row["unnumbered"] for row in flights))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, ("input", "mamasub", "audit"))
    builder = SparkSession.builder.appName("mama-audit")
    for name, value in DELTA.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with mama_spark.stopping(spark):
        mama_spark.register(spark)
        found = audit(spark, str(conf["input"]["path"]), as_options(conf["mamasub"]), conf["audit"])
    print(found.text(), flush=True)
    return found.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
