"""A Delta table that follows the last value of each key, or of each topic."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_NAME = re.compile(r"\w+(\.\w+){0,2}")
_ADAPTIVE = "spark.sql.adaptive.enabled"


def table_at(path: str) -> str:
    return "delta.`{}`".format(path.replace("`", "``"))


def merge_changes(table: str, key: str = "key", revision: str = "revision") -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that merges the changes of each micro-batch into a Delta table (made if missing).

    The table has a row for each key: its last change, in the columns of the stream. A key that was removed keeps a row,
    whose ``operation`` is not ``put``: it says up to which revision changes are known, so that an older one cannot come
    back. A repeated batch changes nothing. Of a message that packs several rows, the last one counts.

    :param table: path, URL or name in the catalog
    :param key, revision: names of columns; for messages by topic, ``topic`` and ``sequence``
    """
    target = table if _NAME.fullmatch(table) else table_at(table)

    def merge(batch: DataFrame, _: int) -> None:
        spark, changes = batch.sparkSession, f"mama_changes_{uuid.uuid4().hex}"
        # Spark 4.0 switches it off in the session of a query, and runs a task for each of the 200 partitions of a
        # shuffle, however few the keys. The plan of the query itself, which may keep states, is made by now.
        adaptive = str(spark.conf.get(_ADAPTIVE))
        spark.conf.set(_ADAPTIVE, "true")
        try:
            columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in batch.schema)
            spark.sql(f"CREATE TABLE IF NOT EXISTS {target} ({columns}) USING delta")
            order = (revision, *{"pack_index"} & {*batch.columns})
            last = F.max_by(F.struct("*"), F.struct(*order)).alias("last")
            batch.groupBy(key).agg(last).select("last.*").createOrReplaceTempView(changes)
            spark.sql(
                f"MERGE INTO {target} AS t USING {changes} AS s ON t.`{key}` = s.`{key}` "
                f"WHEN MATCHED AND s.`{revision}` > t.`{revision}` THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            spark.catalog.dropTempView(changes)
            spark.conf.set(_ADAPTIVE, adaptive)

    return merge
