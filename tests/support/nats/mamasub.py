"""``mamasub`` without Spark: its readers, called as Spark's driver and tasks call them."""

from __future__ import annotations

from typing import Any

from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.subscribe.data_source import MamaSubStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable


def rows_of(reader: Any, tasks: Any) -> list[dict[str, Any]]:
    return [row for task in tasks for some in reader.read(task) for row in some.to_pylist()]


def read(url: str, **options: str) -> list[dict[str, Any]]:
    """The rows of a batch query."""
    source = MamaSubDataSource({"url": url, **options})
    reader = source.reader(source.schema())
    return rows_of(reader, reader.partitions())


class StreamQuery:
    """A streaming query.

    :param offset: where it goes on; None = it begins
    """

    def __init__(self, url: str, offset: Any = None, **options: str) -> None:
        source = MamaSubDataSource({"url": url, **options})
        self.reader: MamaSubStreamReader = source.streamReader(source.schema())
        self.offset = self.reader.initialOffset() if offset is None else offset

    def batch(self, *, limited: bool = False) -> list[dict[str, Any]]:
        """The rows of the next micro-batch, as large as the options allow, or all there is."""
        limit = self.reader.getDefaultReadLimit() if limited else ReadAllAvailable()
        end = self.reader.latestOffset(self.offset, limit)
        tasks = self.reader.partitions(self.offset, end)
        self.offset = end
        return rows_of(self.reader, tasks)
