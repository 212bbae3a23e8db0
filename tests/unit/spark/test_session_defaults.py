"""``spark.mama.<option>``: what wins, what is left out, and what is refused; tables of a catalog."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import mama_spark
import pytest
from mama_spark.contracts.errors import ConfigError, OptionError
from mama_spark.options import BATCH_READ, BATCH_WRITE, SinkOptions, SubscribeOptions
from mama_spark.spark.formats import MamaDiscoveryDataSource, MamaPubDataSource, MamaSubDataSource
from mama_spark.spark.option_loading import read_options
from mama_spark.spark.session_defaults import session_defaults, with_session_defaults
from pyspark.errors import AnalysisException
from pyspark.sql.types import StringType, StructType

from tests.support.canaries import SEED
from tests.support.tables import each

CONF = {
    "spark.mama.url": "nats://desk:4222", "spark.mama.user": "joe", "spark.mama.password": "pw",
    "spark.mama.flightLog": "/log", "spark.app.name": "x",
}  # fmt: skip
DEFAULTS = session_defaults(CONF)
DESK = {"url": "nats://desk:4222", "user": "joe", "password": "pw", "flightlog": "/log"}


@each(
    "given, completed",
    [
        ({}, DESK),
        ({"topics": "a.>"}, {**DESK, "topics": "a.>"}),
        ({"flightLog": "/mine", "User": "eve"}, {"url": DESK["url"], "flightLog": "/mine", "User": "eve"}),
        ({"Token": "t"}, {"url": DESK["url"], "flightlog": "/log", "Token": "t"}),
        ({"url": "nats://desk:4222"}, DESK),
        ({"url": "nats://elsewhere"}, {"url": "nats://elsewhere"}),
        ({"servers": "nats://elsewhere"}, {"servers": "nats://elsewhere"}),
        ({"transport": "other"}, {"transport": "other"}),
    ],
)
def test_the_query_wins_and_another_place_gets_no_login(given: dict[str, str], completed: dict[str, str]) -> None:
    found, names = with_session_defaults({**DEFAULTS, **given})
    assert found == completed
    assert names == found.keys() - given.keys()


def test_a_file_that_says_otherwise_where_the_transport_is_gets_no_login() -> None:
    defaults = session_defaults({f"spark.mama.{name}": name for name in ("transport", "properties", "password")})
    given = {"properties": "mine"}
    assert with_session_defaults({**defaults, **given}) == (given, frozenset())
    assert with_session_defaults({**DEFAULTS, **given})[0] == {**DESK, **given}


def test_a_query_does_not_take_the_prefix_of_the_configuration() -> None:
    with pytest.raises(OptionError, match=r"spark.mama.topics is a setting .* the query's option is topics"):
        MamaSubDataSource({"url": "nats://h", "spark.mama.topics": "a.>"})


def test_a_default_is_left_out_where_it_has_no_effect() -> None:
    read = read_options(SubscribeOptions, {**DEFAULTS, "topics": "a.>"}, BATCH_READ).options
    assert (read.url, read.user) == (("nats://desk:4222",), "joe")
    assert read_options(SinkOptions, DEFAULTS, BATCH_WRITE).options.flight_log == "/log"


@each(
    "key, value, told",
    [
        ("spark.mama.flightlgo", "/log", "no format has the option 'flightlgo'; did you mean 'flightLog'"),
        ("spark.mama.url", "nats://joe:pw@desk", "url holds a secret, .* spark.mama.user and spark.mama.password"),
        ("spark.mama.flightLog", "s3://joe:pw@bucket/log", "spark.mama.flightLog holds a secret"),
        ("spark.mama.nkeySeed", SEED, "spark.mama.nkeySeed holds a secret"),
        ("spark.mama.storage.AWS_ACCESS_KEY_ID", "k", "as options of the query"),
    ],
)
def test_what_is_no_default_is_refused(key: str, value: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        session_defaults({key: value})


def test_a_spark_that_keeps_the_installed_formats_refuses_defaults() -> None:
    class Kept(AnalysisException):
        def getCondition(self) -> str:
            return "DATA_SOURCE_ALREADY_EXISTS"

    spark: Any = MagicMock()
    spark.sparkContext.configure_mock(master="spark://h:7077", defaultParallelism=2)
    spark.dataSource.register.side_effect = Kept("")
    spark.conf.getAll = CONF
    with pytest.raises(OptionError, match=r"remove spark\.mama\.\* from its configuration"):
        mama_spark.register(spark)


# --- ``CREATE TABLE ... USING``: Spark forgets the options of such a table, so none is read or written in silence -----

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
        with pytest.raises(ConfigError, match=rf"^option {needed} is needed: .* a table: .* CREATE TEMPORARY VIEW"):
            call()


@each(
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
