"""A declarative pipeline: a table of the messages that come, and a sink for those that go out.

Needs a broker and Spark 4.1 or newer, installed as pyspark[pipelines].

spark-pipelines run --spec conf/pipeline.yml
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
URL = "nats://127.0.0.1:4222"


@dp.table
def orders() -> DataFrame:
    messages = spark.readStream.format("mamasub").option("url", URL).option("topics", "demo.orders.*").load()
    return messages.selectExpr("topic", "cast(value AS string) AS value", "stream", "sequence")


dp.create_sink("checked", "mamapub", {"url": URL, "flightLog": "/tmp/mama/pipeline_log"})


@dp.append_flow(target="checked")
def check() -> DataFrame:
    return spark.readStream.table("orders").selectExpr("replace(topic, 'orders', 'checked') AS topic", "value")
