"""A driver whose user makes many mistakes, one after the other: prints, as JSON, what Python shows of each, and what
a cell of a notebook shows of it.

Arguments: URL of a server that wants a login (``admin``, password ``p``), its stream taking ``demo.>``; a folder.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import mama_spark
from IPython.core.interactiveshell import InteractiveShell
from pyspark.sql import SparkSession

CLOSED = "nats://127.0.0.1:1"
ROW = "SELECT 'demo.a' AS topic, 'x' AS value"


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[1]").appName("mistakes")
    conf = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.codegen.wholeStage": "false", "spark.ui.showConsoleProgress": "false",
    }  # fmt: skip
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def mistakes(spark: SparkSession, server: str, folder: Path) -> dict[str, Callable[[], object]]:
    admin, log = server.replace("://", "://admin:p@"), str(folder / "log")

    def write(sql: str = ROW, mode: str = "append", **options: str) -> Callable[[], object]:
        given = {"url": admin, "flightLog": log, **options}
        return lambda: spark.sql(sql).write.format("mamapub").options(**given).mode(mode).save()

    def read(**options: str) -> Callable[[], object]:
        given = {"url": admin, "topics": "demo.>", **options}
        return lambda: spark.read.format("mamasub").options(**given).load().count()

    def stream() -> None:
        rows = spark.readStream.format("rate").load().selectExpr("'demo.a' AS topic", "'x' AS value")
        query = rows.writeStream.format("mamapub").option("url", admin).option("flightLgo", log)
        with mama_spark.last_line():
            query.option("checkpointLocation", str(folder / "stream")).start().awaitTermination()

    def other_checkpoint() -> None:
        """Of a query that read something else."""
        where, noop = str(folder / "other"), "noop"
        rows = spark.readStream.format("rate").load()
        first = rows.writeStream.format(noop).option("checkpointLocation", where).trigger(availableNow=True).start()
        first.awaitTermination()
        messages = spark.readStream.format("mamasub").option("url", admin).option("topics", "demo.>").load()
        with mama_spark.last_line():
            messages.writeStream.format(noop).option("checkpointLocation", where).start().awaitTermination()

    return {
        "no server": write(url=CLOSED),
        "wrong password": write(url=server.replace("://", "://admin:q@")),
        "misspelled option": write(flightLgo="x"),
        "no column topic": write("SELECT 'demo.a' AS subject, 'x' AS value"),
        "overwrite": write(mode="overwrite"),
        "wildcard": write("SELECT 'demo.*' AS topic, 'x' AS value"),
        "read: no stream": read(topics="nowhere.>"),
        "read: no topics": read(topics=""),
        "stream: misspelled option": stream,
        "stream: checkpoint of another query": other_checkpoint,
    }


def shown(make: Callable[[], object], shell: InteractiveShell) -> tuple[str, str]:
    try:
        make()
    except Exception:  # noqa: BLE001 - whatever comes is what is looked at
        lines = shell.InteractiveTB.structured_traceback(*sys.exc_info())  # what a kernel sends to the notebook
        return traceback.format_exc(), "\n".join(lines)
    return "no error", "no error"


def main() -> None:
    server, folder = sys.argv[1:]
    spark, shell = session(), InteractiveShell.instance(colors="nocolor")
    made = mistakes(spark, server, Path(folder))
    print(json.dumps({name: shown(make, shell) for name, make in made.items()}))
    spark.stop()


if __name__ == "__main__":
    main()
