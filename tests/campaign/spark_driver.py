"""The driver of a streaming write in Spark, with the arguments of ``driver.py``: a batch is two files, a task each."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.campaign.rows import Amount, of_partition

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.openCostInBytes": str(1 << 27),  # a file is a partition
}


def write_input(folder: Path, amount: Amount) -> None:
    """The files, once; their times say in which order they are read."""
    if folder.exists():
        return
    hidden = folder.with_name("unfinished-input")
    hidden.mkdir(exist_ok=True)
    for batch in range(amount.batches):
        for partition in range(amount.partitions):
            file = hidden / f"{batch}-{partition}.parquet"
            pq.write_table(pa.Table.from_batches(list(of_partition(amount, batch, partition))), file)
            os.utime(file, (batch + 1, batch + 1))
    hidden.rename(folder)


def run(given: dict[str, Any]) -> None:
    """All batches that the checkpoint does not have; the error of the query, if it fails."""
    folder, amount = Path(given["folder"]), Amount(**given["amount"])
    write_input(folder / "input", amount)
    builder = SparkSession.builder.master("local[2,4]").appName("campaign")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.schema("topic STRING, value BINARY")
        .option("maxFilesPerTrigger", amount.partitions)
        .parquet(str(folder / "input"))
    )
    query = (
        rows.writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
