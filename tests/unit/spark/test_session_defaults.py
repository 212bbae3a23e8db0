"""``spark.mama.<option>``: what wins, what is left out, and what is refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import mama_spark
import pytest
from mama_spark.contracts.errors import OptionError
from mama_spark.options import BATCH_READ, BATCH_WRITE, SinkOptions, SubscribeOptions
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.option_loading import read_options
from mama_spark.spark.session_defaults import session_defaults, with_session_defaults
from pyspark.errors import AnalysisException

from tests.support.canaries import CREDENTIALS, SEED
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
        (
            {"flightLog": "/mine", "User": "eve"},
            {"url": DESK["url"], "flightLog": "/mine", "User": "eve"},
        ),
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
        (
            "spark.mama.url",
            "nats://joe:pw@desk",
            "spark.mama.url holds a secret, .* spark.mama.user and spark.mama.password",
        ),
        ("spark.mama.flightLog", "s3://joe:pw@bucket/log", "spark.mama.flightLog holds a secret"),
        ("spark.mama.credentials", CREDENTIALS, "spark.mama.credentials holds a secret"),
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
