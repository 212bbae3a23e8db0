"""Writes, reads and streams, most of which fail, with a secret in every option that can hold one.

Arguments: a folder for all that is kept, the URL of the server, and a file with the options of each step as JSON: name,
what to do, options, and whether it works. What the UI's REST interface tells is kept in files.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import mama_spark
from pyspark.sql import SparkSession

PAGES = (
    "api/v1/applications/{app}/sql?details=true&planDescription=true&length=1000",
    "api/v1/applications/{app}/jobs",
    "api/v1/applications/{app}/stages?details=true",
    "api/v1/applications/{app}/environment",
    "SQL/",
    "StreamingQuery/",
    "jobs/",
    "environment/",
)


def step(spark: SparkSession, kind: str, options: dict[str, str], folder: Path, number: int) -> None:
    if kind == "write":
        rows = spark.createDataFrame([("s.1", "x"), ("bad topic", "y")], ["topic", "value"])
        rows.coalesce(1).write.format("mamapub").mode("append").options(**options).save()
    elif kind == "read":
        spark.read.format("mamasub").options(**options).load().collect()
    else:
        stream = spark.readStream.format("mamasub").options(
            **{**options, "topics": "s.1", "startingOffsets": "earliest"}
        )
        kept = {"checkpointLocation": str(folder / f"checkpoint-{number}"), "flightLog": str(folder / "flight_log")}
        made = stream.load().selectExpr("concat('s.copy.', sequence) AS topic", "value").writeStream
        query = made.format("mamapub").options(**{**options, **kept}).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.explain()
            print(query.lastProgress, query.status, query.exception())


def pages(spark: SparkSession, executions: int) -> list[bytes]:
    """What the UI tells, when it has heard of everything."""
    at, app = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    deadline = time.monotonic() + 60
    while True:
        found = [urllib.request.urlopen(f"{at}/{page.format(app=app)}").read() for page in PAGES]
        told: list[dict[str, Any]] = json.loads(found[0])
        if len(told) >= executions and all(one["status"] != "RUNNING" for one in told):
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"the UI tells of {len(told)} executions, not {executions}")
        time.sleep(0.1)


def main(folder: Path, steps: list[tuple[str, str, dict[str, str], bool]]) -> None:
    spark = SparkSession.builder.appName("secrets").getOrCreate()
    mama_spark.register(spark)
    for number, (name, kind, options, works) in enumerate(steps):
        try:
            step(spark, kind, options, folder, number)
            outcome = "works"
        except Exception as e:  # noqa: BLE001 the test reads what a person would
            outcome = "fails"
            print(f"{name}: {type(e).__name__}: {e}", flush=True)
        print(f"STEP {name} {outcome}{'' if works == (outcome == 'works') else ', which is wrong'}", flush=True)
    for number, page in enumerate(pages(spark, sum(works for *_, works in steps))):
        (folder / f"page-{number}").write_bytes(page)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
