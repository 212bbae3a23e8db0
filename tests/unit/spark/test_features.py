"""Older Spark: its calls of a reader, and what its modules lack. ``make test-matrix`` has the real ones."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.spark.features import ReadMaxRows, StartKeepingReader, arrow_schema
from pyspark.sql.types import StructType

Offset = dict[str, int]


class Numbers:
    """Reads numbers; three in a micro-batch."""

    def initialOffset(self) -> Offset:
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(3)

    def latestOffset(self, start: Offset, limit: ReadMaxRows) -> Offset:
        return {"n": start["n"] + limit.max_rows}

    def partitions(self, start: Offset, end: Offset) -> list[Any]:
        return list(range(start["n"], end["n"]))


def planned(reader: StartKeepingReader, start: Offset) -> tuple[Offset, Any]:
    """The next micro-batch as Spark plans it."""
    end = reader.latestOffset()
    return end, reader.partitions(start, end)


def test_a_micro_batch_begins_where_the_last_one_ended(caplog: pytest.LogCaptureFixture) -> None:
    reader = StartKeepingReader(Numbers())
    with caplog.at_level(logging.WARNING, "mama_spark"):
        first, _ = planned(reader, reader.initialOffset())
        assert planned(reader, first) == ({"n": 6}, [3, 4, 5])
    assert len([r for r in caplog.messages if "ends after 3 records" in r]) == 1


def test_a_query_goes_on_at_the_offset_that_spark_plans_an_empty_batch_at(caplog: pytest.LogCaptureFixture) -> None:
    reader = StartKeepingReader(Numbers())
    assert reader.partitions({"n": 9}, {"n": 9}) == []
    assert planned(reader, {"n": 9}) == ({"n": 12}, [9, 10, 11])
    assert len(caplog.messages) == 1, "each run says how much it takes"


def test_an_end_that_was_asked_for_too_early_is_never_used() -> None:
    """As by the wrapper of Spark for availableNow: the query would go back."""
    reader = StartKeepingReader(Numbers())
    assert reader.latestOffset() == {"n": 3}
    with pytest.raises(ConfigError, match="triggerAvailableNowWrapper"):
        reader.partitions({"n": 9}, {"n": 9})


def test_timestamps_are_in_utc_whether_or_not_spark_lets_one_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(schema: StructType) -> pa.Schema:
        return pa.schema([("at", pa.timestamp("us", "UTC"))])

    newest = arrow_schema(StructType().add("at", "timestamp"))
    monkeypatch.setattr("pyspark.sql.pandas.types.to_arrow_schema", older)
    assert arrow_schema(StructType().add("at", "timestamp")) == newest


SPARK_4_0 = """
import sys, pyspark.sql.datasource as api
del api.DataSourceStreamArrowWriter
sys.modules["pyspark.sql.streaming.datasource"] = None
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from mama_spark.spark.discovery.row_batches import SCHEMA
from mama_spark.spark.formats import MamaDiscoveryDataSource, MamaPubDataSource, MamaSubDataSource
options = {"url": "nats://none:4222"}
messages, changes = MamaSubDataSource({**options, "topics": "a.>"}), MamaDiscoveryDataSource(options)
for reader in (messages.streamReader(messages.schema()), changes.streamReader(from_arrow_schema(SCHEMA))):
    print(type(reader).__name__, isinstance(reader, api.DataSourceStreamReader))
writer = MamaPubDataSource(options).streamWriter(StructType().add("topic", "string").add("value", "binary"), False)
print(isinstance(writer, api.DataSourceArrowWriter), isinstance(writer, api.DataSourceStreamWriter))
"""


def test_all_formats_stream_without_what_spark_4_0_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", SPARK_4_0], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["StartKeepingReader True"] * 2 + ["True True"]
