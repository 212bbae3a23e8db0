"""The formats in SQL: a temporary view has options; a table of the catalog would lose them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.support.nats.nats_servers import Admin
from tests.support.spark.sink_harness import counts, flights

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "use-sql-only.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```sql\n(.*?)^```", PAGE)


def placed(statements: str, url: str, folder: Path) -> str:
    """Statements of the page, with another place for that of the page."""
    return statements.replace("nats://127.0.0.1:4222", url).replace("/tmp/mama", str(folder))


def test_the_page_runs_as_written_and_a_table_is_refused(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    url = nats_server.url
    with Admin(url) as admin:
        admin.create_stream("SQL", ["demo.sql.>"])
        found = []
        for statement in ";".join(BLOCKS).split(";"):
            if statement.strip():
                found.append(spark.sql(placed(statement, url, tmp_path)).collect())
        assert [row.order_id for row in sorted(found[3], key=lambda row: row.order_id)] == [*range(100)]
        assert counts(flights(tmp_path / "sql_log"), "event") == {"acked": 100}
        given = f"OPTIONS (url '{url}', topics 'demo.sql.>')"
        with pytest.raises(AnalysisException, match="mamasub cannot be a table of Spark's catalog"):
            spark.sql(f"CREATE TABLE of_the_catalog USING mamasub {given}")
        assert len(admin.messages("SQL")) == 100
        admin.api("STREAM.DELETE.SQL")


@pytest.mark.thorough
def test_the_statements_publish_in_a_file_of_spark_sql(nats_server: NatsServer, tmp_path: Path) -> None:
    file, programs = tmp_path / "page.sql", Path(sys.executable).parent
    file.write_text(placed(BLOCKS[0] + BLOCKS[1], nats_server.url, tmp_path))
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    with Admin(nats_server.url) as admin:
        admin.create_stream("SQL", ["demo.sql.>"])
        done = subprocess.run(
            [programs / "spark-sql", "--master", "local[2]", "-f", file],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400,
        )  # fmt: skip
        stored = admin.messages("SQL")
        admin.api("STREAM.DELETE.SQL")
    assert done.returncode == 0, done.stderr[-3_000:]
    assert len(stored) == done.stdout.count("demo.sql.") == 100, done.stdout


@pytest.mark.thorough
def test_what_the_page_says_that_spark_cannot_do(spark: SparkSession, nats_server: NatsServer) -> None:
    url, catalog = nats_server.url, "spark.sql.catalog.spark_catalog"
    rows = spark.createDataFrame([("demo.sql.a", "x")], "topic STRING, value STRING")
    creations: dict[str, Callable[[], None]] = {
        "created": lambda: rows.writeTo("created").using("mamapub").option("url", url).create(),
        "saved": lambda: rows.write.format("mamapub").option("url", url).saveAsTable("saved"),
    }
    view = f"(topic STRING, value STRING) USING mamapub OPTIONS (url '{url}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW rows_out {view}")
    delta = spark.conf.get(catalog)
    with Admin(url) as admin:
        admin.create_stream("SQL", ["demo.sql.>"])
        with pytest.raises(AnalysisException, match="mamapub cannot overwrite"):
            spark.sql("INSERT OVERWRITE rows_out SELECT 'demo.sql.a', 'x'")
        rows.write.insertInto("rows_out")
        for create in creations.values():
            with pytest.raises(Py4JJavaError, match=r"\[INTERNAL_ERROR\] Executed create failed"):
                create()
        assert len(admin.messages("SQL")) == 1
        spark.conf.set(catalog, "builtin")
        try:
            for name, create in creations.items():
                create()
                with pytest.raises(AnalysisException, match="mamapub cannot be a table of Spark's catalog"):
                    rows.write.insertInto(name)
                spark.sql(f"DROP TABLE {name}")
        finally:
            spark.conf.set(catalog, str(delta))
        assert len(admin.messages("SQL")) == 3
        admin.api("STREAM.DELETE.SQL")
