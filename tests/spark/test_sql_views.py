"""The formats in SQL: a temporary view has options; a table of the catalog would lose them."""

from __future__ import annotations

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.support.nats.nats_servers import Admin


def test_a_view_is_written_and_read_and_a_table_is_refused(spark: SparkSession, nats_server: NatsServer) -> None:
    url = nats_server.url
    with Admin(url) as admin:
        admin.create_stream("SQL", ["sql.>"])
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW sink (topic STRING, value STRING) USING mamapub OPTIONS (url '{url}')"
        )
        spark.sql("INSERT INTO sink VALUES ('sql.a', 'one'), ('sql.b', 'two')")
        given = f"OPTIONS (url '{url}', topics 'sql.>')"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages USING mamasub {given}")
        rows = spark.sql("SELECT topic, CAST(value AS STRING) FROM messages ORDER BY topic").collect()
        assert [tuple(row) for row in rows] == [("sql.a", "one"), ("sql.b", "two")]
        with pytest.raises(AnalysisException, match="mamasub cannot be a table of Spark's catalog"):
            spark.sql(f"CREATE TABLE of_the_catalog USING mamasub {given}")
        assert len(admin.messages("SQL")) == 2
        admin.api("STREAM.DELETE.SQL")
