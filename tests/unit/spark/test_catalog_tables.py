"""``CREATE TABLE ... USING``: Spark forgets the options of such a table, so none is read or written in silence."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.spark.formats import MamaDiscoveryDataSource, MamaPubDataSource, MamaSubDataSource
from pyspark.sql.types import StringType, StructType

from tests.support.tables import each

#: What Spark hands over at CREATE TABLE.
TABLE = {"provider": "x", "owner": "root", "url": "nats://h", "option.url": "nats://h", "topics": "a.>"}
SCHEMA = StructType().add("topic", StringType()).add("value", StringType())


@each("source", [MamaPubDataSource, MamaSubDataSource, MamaDiscoveryDataSource])
def test_a_table_of_the_catalog_is_refused_with_the_way_to_go(source: type[MamaSubDataSource]) -> None:
    with pytest.raises(ConfigError, match=rf"{source.name()} cannot be a table .* CREATE TEMPORARY VIEW"):
        source(TABLE).schema()


def test_such_a_table_is_that_of_no_default_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with columns in its DDL is made without us, and written and read without its options."""
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    to = MamaPubDataSource({"checkpointLocation": "/here"})  # Spark hands over where a stream into a table keeps itself
    out_of = type("Sub", (MamaSubDataSource,), {"session_defaults": {"spark.mama.topics": "a.>"}})({})
    for call, needed in (
        (lambda: to.writer(SCHEMA, overwrite=False), "url"),
        (lambda: to.streamWriter(SCHEMA, overwrite=False), "url"),
        (lambda: out_of.reader(SCHEMA), r"topics \(or stream\)"),
        (lambda: out_of.streamReader(SCHEMA), r"topics \(or stream\)"),
    ):
        with pytest.raises(ConfigError, match=rf"no option at all .* {needed} is needed.* CREATE TEMPORARY VIEW"):
            call()


@pytest.mark.parametrize(
    ("source", "call", "told"),
    [
        (MamaPubDataSource, "reader", r'mamapub only writes: .*spark.read.format\("mamasub"\)'),
        (MamaPubDataSource, "streamReader", "mamapub only writes"),
        (MamaSubDataSource, "writer", r'mamasub only reads: .*df.write.format\("mamapub"\)'),
        (MamaDiscoveryDataSource, "streamWriter", "mamadiscovery only reads"),
    ],
)
def test_a_format_that_goes_one_way_names_the_one_that_goes_the_other(
    source: type[MamaSubDataSource], call: str, told: str
) -> None:
    more = [False] if call.endswith("riter") else []
    with pytest.raises(ConfigError, match=told):
        getattr(source({"url": "nats://h"}), call)(SCHEMA, *more)


def test_a_view_of_mamapub_needs_columns() -> None:
    with pytest.raises(ConfigError, match=r"name those that INSERT INTO writes"):
        MamaPubDataSource({"url": "nats://h"}).schema()
