"""What is written is what is read, for every type: as JSON by Spark's own ``from_json``, and as columns of packs."""

from __future__ import annotations

from typing import Any

from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.support.nats.nats_servers import Admin

#: Columns, and their values row by row.
VALUES = {
    "flag": ["true", "false", "null"],
    "tiny": ["-128Y", "127Y", "null"],
    "small": ["-32768S", "32767S", "null"],
    "number": ["-2147483648", "2147483647", "null"],
    "large": ["-9223372036854775808L", "9223372036854775807L", "null"],
    "single": ["0.1F", "float('NaN')", "float('-Infinity')"],
    "least": ["float('1.4E-45')", "float('3.4028235E38')", "float('-0.0')"],
    "wide": ["0.1D", "double('NaN')", "double('Infinity')"],
    "edge": ["double('4.9E-324')", "double('1.7976931348623157E308')", "double('-0.0')"],
    "exact": ["cast('12345678901234567890.123456789012345678' AS DECIMAL(38,18))", "-0.000000000000000001BD", "null"],
    "text": [r"'quote \" back \\\\ line \n NUL \0 end'", r"'Grüße \U0001F600 \u2028'", "''"],
    "raw": ["X'00FF0A'", "X''", "null"],
    "day": ["date'0001-01-01'", "date'1582-10-10'", "date'9999-12-31'"],
    "at": ["timestamp'0001-01-03 00:00:00'", "timestamp'1582-10-10 23:59:59.999999'", "timestamp_micros(-1)"],
    "local": ["timestamp_ntz'9999-12-31 23:59:59.999999'", "timestamp_ntz'1582-10-04 00:00:00'", "null"],
    "lasts": ["interval '-1 02:03:04.000005' day to second", "interval '106751991 04:00:54.775807' day to second",
              "null"],
    "many": ["array(1.5F, null, float('NaN'), 0.1F)", "array()", "null"],
    "named": ["map('a', double('NaN'), 'é', null)", "map()", "null"],
    "deep": ["named_struct('l', array(named_struct('at', timestamp_micros(1), 'f', 0.1F), null))",
             "named_struct('l', null)", "null"],
}  # fmt: skip
#: Types that one of the two ways refuses; see the unit tests of the columns.
ONLY_IN_PACKS = {"numbered": ["map(1, 0.1F)", "map()", "null"]}


def frame(spark: SparkSession, values: dict[str, list[str]]) -> DataFrame:
    rows = [spark.sql("SELECT " + ", ".join(f"{v[i]} AS {name}" for name, v in values.items())) for i in range(3)]
    return rows[0].unionByName(rows[1]).unionByName(rows[2]).coalesce(1)


def nullable(df: DataFrame) -> StructType:
    """Its columns, with nulls allowed everywhere."""
    made = StructType.fromDDL(", ".join(f"{f.name} {f.dataType.simpleString()}" for f in df.schema))
    assert isinstance(made, StructType)
    return made


def listed(df: DataFrame) -> list[Any]:
    """By text: NaN is then equal to NaN, and 0.0 is not equal to -0.0."""
    return sorted(repr(row.asDict(recursive=True)) for row in df.collect())


def test_every_value_comes_back_as_it_was_written(spark: SparkSession, nats_server: NatsServer) -> None:
    url = nats_server.url
    texts, columns = frame(spark, VALUES), frame(spark, {**VALUES, **ONLY_IN_PACKS})
    with Admin(url) as admin:
        admin.create_stream("VALUES", ["values.>"])
        texts.write.format("mamapub").options(url=url, topic="values.json").mode("append").save()
        columns.write.format("mamapub").options(url=url, topic="values.arrow", pack="arrow").mode("append").save()
        source = spark.read.format("mamasub").options(url=url)
        read = (
            source.options(topics="values.json")
            .load()
            .select(F.from_json(F.col("value").cast("string"), nullable(texts)))
        )
        assert listed(read.toDF("row").select("row.*")) == listed(texts)
        assert listed(source.options(topics="values.arrow").schema(nullable(columns)).load()) == listed(columns)
        admin.api("STREAM.DELETE.VALUES")
