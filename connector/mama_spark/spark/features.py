"""The API for Python data sources of the running Spark; only this module asks what it has (an error tells
:mod:`.register` that Spark 4.0 replaces no format). Readers and writers are made for the newest, and this module brings
older ones (from Spark 4.0 on) to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition

from mama_spark.contracts.errors import ConfigError

from .plain_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "for_this_spark",
]

logger = logging.getLogger("mama_spark")
R = TypeVar("R", bound=DataSourceStreamReader)

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[no-redef,misc]
        """Spark 4.0 gives Arrow batches to each writer that is a ``DataSourceArrowWriter``, also in a stream."""


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_READ_LIMITS = True  #: Spark says from where a micro-batch begins, and which trigger asks
except ImportError:
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        pass

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of these columns; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    may_choose = "timezone" in signature(to_arrow_schema).parameters  # before Spark 4.2 it is UTC
    return to_arrow_schema(schema, timezone="UTC") if may_choose else to_arrow_schema(schema)


def for_this_spark(reader: R) -> R:
    """Adapt ``reader`` (``latestOffset(start, limit)`` and ``getDefaultReadLimit()``) to the running Spark."""
    return reader if HAS_READ_LIMITS else cast(R, StartKeepingReader(reader))


class StartKeepingReader(DataSourceStreamReader):
    """Reader for Spark before 4.2, which asks for a micro-batch's end without its start: the start is the last end.

    After a restart, Spark plans an empty micro-batch at its last offset first, whatever the trigger is.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._at: dict[str, Any] | None = None
        self._asked = False

    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initialOffset()  # type: ignore[no-any-return]

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        limit = self._reader.getDefaultReadLimit()
        if not self._asked and isinstance(limit, ReadMaxRows):
            logger.warning(
                "this Spark runs one micro-batch with trigger(availableNow=True), which with this limit ends after %s "
                "records, and lag() does not see the others; from Spark 4.2 on it goes on to the end",
                f"{limit.max_rows:,}",
            )
        self._asked = True
        start = self._reader.initialOffset() if self._at is None else self._at
        self._at = self._reader.latestOffset(start, limit)
        return self._at

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end and self._at not in (None, end):  # what was returned began in another place
            raise ConfigError(
                "this Spark asked for new records before it told where the query had stopped: set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled to false, as it is by default"
            )
        self._at = end
        return self._reader.partitions(start, end)  # type: ignore[no-any-return]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)  # type: ignore[no-any-return]

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)
