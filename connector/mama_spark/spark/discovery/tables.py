"""Writes rows of ``mamadiscovery`` into two Delta tables: the history of all rows, and the current state of sources.

For ``foreachBatch``: each micro-batch is in each table once, also when Spark repeats it after a crash. The history has
the batches of the query as app transactions; a merge of the same batch into the other table changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mama_spark.contracts.errors import ConfigError
from mama_spark.mama.discovery.discovery_rows import ABSENT, BAD_RECORD, GAP, IMAGE_END, SOURCE

from ..merge_changes import table_at

KEY = ("source_name", "source_id", "bridge", "transport")
#: From records of the source itself; kept when the middleware reports it as SUSPECT or OFFLINE.
SOURCE_COLUMNS = ("source_qos_rate", "source_qos_timeliness", "source_data_dict", "capabilities", "raw")
#: In every row of a source.
EVENT_COLUMNS = (
    "event",
    "source_state",
    "source_data_state",
    "status",
    "code",
    "info",
    "origin",
    "event_time",
    "sequence",
)

CURRENT = (
    "source_name STRING, source_id DECIMAL(20,0), bridge STRING, transport STRING, event STRING, source_state STRING, "
    "source_data_state STRING, source_qos_rate STRING, source_qos_timeliness STRING, source_data_dict STRING, "
    "capabilities MAP<STRING, STRING>, status STRING, code INT, info STRING, raw BINARY, origin STRING, "
    "event_time TIMESTAMP, sequence BIGINT, query_id STRING"
)


@dataclass(frozen=True)
class DiscoveryTables:
    """``writeStream.foreachBatch(DiscoveryTables(history, current).write)``; the session needs Delta.

    :param history: path of the table that every row is appended to
    :param current: path of the table that has one row a source; ``query_id``: query that confirmed it, null after a gap
    """

    history: str
    current: str

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Append a micro-batch to the history, and merge it into the current table.

        :raises ConfigError: this is no micro-batch of a streaming query
        """
        spark = batch.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise ConfigError("these tables are written by foreachBatch of a streaming query only")
        rows = batch.withColumn("row", F.monotonically_increasing_id()).persist()  # one partition: the order of events
        try:
            kinds = {row[0] for row in rows.select("kind").distinct().collect()}
            if kinds:
                self._append(rows.drop("row"), query, batch_id)
                self._merge(spark, rows, kinds, query)
        finally:
            rows.unpersist()

    def _append(self, rows: DataFrame, query: str, batch_id: int) -> None:
        writer = rows.write.format("delta").mode("append")
        writer.option("txnAppId", query).option("txnVersion", batch_id).save(self.history)

    def _merge(self, spark: SparkSession, rows: DataFrame, kinds: set[str], query: str) -> None:
        table = table_at(self.current)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({CURRENT}) USING DELTA")
        if GAP in kinds:  # the lost records may have been the end of any source
            spark.sql(f"UPDATE {table} SET query_id = NULL WHERE {_same_transport(rows)}")
        if SOURCE in kinds:
            spark.sql(_merge_into(table), latest=_latest(rows, query))
        if IMAGE_END in kinds:
            # mama_spark.discovery.source_expiry.offline_by_absence in SQL: a source that is online, and that no row of
            # this query has confirmed, is not in the image.
            absent = ", ".join(f"{name} = '{value}'" for name, value in ABSENT.items())
            spark.sql(
                f"UPDATE {table} SET {absent}, query_id = '{query}' "
                f"WHERE {_same_transport(rows)} AND NOT query_id <=> '{query}' "
                f"AND NOT source_state <=> '{ABSENT['source_state']}'"
            )


def _same_transport(rows: DataFrame) -> str:
    """SQL condition: sources of the transport of ``rows``; a query has one."""
    bridge, transport = rows.select("bridge", "transport").first() or ("", "")
    return " AND ".join(
        f"{name} = '{value}'" for name, value in (("bridge", _quoted(bridge)), ("transport", _quoted(transport)))
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _latest(rows: DataFrame, query: str) -> DataFrame:
    """One row a source: the last state, and the columns of its own last record."""
    source_rows = rows.where((F.col("kind") == SOURCE) & (F.col("event") != BAD_RECORD))
    own = F.max_by(F.struct(*SOURCE_COLUMNS), F.when(F.col("raw").isNotNull(), F.col("row")))
    grouped = source_rows.groupBy(*KEY).agg(F.max_by(F.struct(*EVENT_COLUMNS), "row").alias("now"), own.alias("own"))
    own_known = F.col("own").isNotNull().alias("own_known")
    return grouped.select(*KEY, "now.*", "own.*", own_known, F.lit(query).alias("query_id"))


def _merge_into(table: str) -> str:
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in KEY)
    columns = (*KEY, *EVENT_COLUMNS, *SOURCE_COLUMNS, "query_id")
    sets = [f"t.{name} = s.{name}" for name in (*EVENT_COLUMNS, "query_id")]
    sets += [f"t.{name} = CASE WHEN s.own_known THEN s.{name} ELSE t.{name} END" for name in SOURCE_COLUMNS]
    table = table.replace("{", "{{").replace("}", "}}")  # the text is a template
    return (
        f"MERGE INTO {table} t USING {{latest}} s ON {same} "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(sets)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{n}' for n in columns)})"
    )
