"""Publishes failed rows again, from a flight log or a dead-letter table.

Needs a broker, and a flight log with payloads or a dead-letter table.

``spark-submit jobs/republish.py --conf-file conf/republish.toml``. Rows keep their ids, so that those which were stored
after all are not stored twice within the broker's duplicate window.
"""

from __future__ import annotations

import argparse

import mama_spark
from mama_spark.flightlog.reading import unpublished
from mama_spark.options.conf_file import load
from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file)
    storage = {str(k).removeprefix("storage."): str(v) for k, v in conf["input"].items() if k != "path"}
    failed = unpublished(str(conf["input"]["path"]), storage)
    print(f"{failed.num_rows:,} rows to publish again from {conf['input']['path']}", flush=True)
    if not failed.num_rows:
        return
    spark = SparkSession.builder.appName("mama-republish").getOrCreate()
    with mama_spark.stopping(spark):
        mama_spark.register(spark)
        rows = spark.createDataFrame(failed)
        with mama_spark.progress(spark, total=failed.num_rows):
            rows.write.format("mamapub").options(**{"idColumn": "id", **conf["mamapub"]}).mode("append").save()
    # With onError=log the write succeeds, whatever became of them.
    print(f"{failed.num_rows:,} rows handed to the write: its line 'mamapub: ..' says what became of them", flush=True)


if __name__ == "__main__":
    main()
