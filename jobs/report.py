"""Summarises a flight log with Spark, and writes its report page if `page` names a file (extra report).

Needs a flight log and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/report.py --conf-file conf/report.toml
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import mama_spark
from mama_spark.flightlog.schema import IS_FAILED, IS_OUTCOME, OUTCOMES
from mama_spark.spark.read_flight_log import flight_log
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def reports(log: DataFrame, topics: int) -> dict[str, DataFrame]:
    """The tables of the summary by their names."""
    flights = log.where(IS_OUTCOME)
    acked = flights.where("event = 'acked' AND committed")
    latency = [F.percentile_approx("latency_us", p).alias(f"p{round(p * 100)}_us") for p in (0.5, 0.9, 0.99)]
    rated = [F.count("*").alias("flights"), *latency, F.max("latency_us").alias("max_us")]
    outcomes = [F.sum(F.expr(f"if(event = '{event}', rows, 0)")).alias(name) for name, event in OUTCOMES.items()]
    by_reason = flights.where(IS_FAILED).groupBy("event", "status", "code", "info", "committed")
    return {
        "rows": flights.groupBy("committed").agg(F.sum("rows").alias("rows"), *outcomes).orderBy(F.desc("committed")),
        "latency": acked.agg(*rated),
        "slowest_topics": acked.groupBy("topic").agg(*rated).orderBy(F.desc("p99_us")).limit(topics),
        "failures": by_reason.agg(F.sum("rows").alias("rows")).orderBy(F.desc("rows")).limit(topics),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", type=Path, required=True)
    conf = tomllib.loads(parser.parse_args().conf_file.read_text())
    builder = SparkSession.builder.appName("flight log report")
    for name, value in DELTA.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with mama_spark.stopping(spark):
        log = flight_log(spark, conf["flight_log"])
        for name, table in reports(log, conf.get("topics", 10)).items():
            print(f"\n{name}:")
            table.show(conf.get("topics", 10), truncate=False)
            if "output" in conf:
                table.coalesce(1).write.mode("overwrite").json(f"{conf['output']}/{name}")
    if "page" in conf:
        print(f"\nreport page: {mama_spark.report(conf['flight_log']).save(conf['page'])}")


if __name__ == "__main__":
    main()
