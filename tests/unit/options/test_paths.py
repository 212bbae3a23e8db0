"""Paths of tables mean one place in every process, or stay URLs."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import OptionError
from mama_spark.options import SinkOptions
from mama_spark.options.paths import local_path

from tests.support.tables import each


@each(
    ("given", "absolute", "local"),
    [
        ("log", "/work/job/log", "/work/job/log"),
        ("./data/log", "/work/job/data/log", "/work/job/data/log"),
        ("../log", "/work/job/../log", "/work/job/../log"),  # what .. leads to, links decide
        ("a:b", "/work/job/a:b", "/work/job/a:b"),
        ("/data/log", "/data/log", "/data/log"),
        ("file:///data/my%20log", "file:///data/my%20log", "/data/my log"),
        ("FILE:/data/log", "FILE:/data/log", "/data/log"),
        ("s3://bucket/log", "s3://bucket/log", None),
        ("abfss://c@account.dfs.core.windows.net/log", "abfss://c@account.dfs.core.windows.net/log", None),
    ],
)
def test_relative_paths_become_absolute_and_urls_stay(given: str, absolute: str, local: str | None) -> None:
    for option in ("flightLog", "deadLetterTable"):
        options = SinkOptions.parse({option: given, "onError": "deadletter", "deadLetterTopic": "x"})
        options = options.with_tables_below("/work/job")
        assert (options.flight_log or options.dead_letter_table) == absolute
    assert local_path(absolute) == local


@each("url", ["file:log", "file://log/x", "file://server/share/log", "file:"])
def test_file_urls_that_are_not_absolute_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="flightLog must be an absolute path as a file: URL"):
        SinkOptions.parse({"flightLog": url})


@each(
    ("log", "letters", "fine"),
    [
        ("/data/log", "/data/log2", True),
        ("s3://a/log", "s3://b/log", True),
        ("/data/log", "/data/log", False),
        ("log", "/work/job/log/", False),
        ("/data/log/here", "/data//log", False),
        ("s3://a/log", "s3://a/log/letters", False),
    ],
)
def test_one_table_in_the_other_is_refused(log: str, letters: str, fine: bool) -> None:
    """VACUUM of the outer one would delete the files of the inner one, and one folder is one table."""
    options = SinkOptions.parse({"flightLog": log, "deadLetterTable": letters, "onError": "deadletter"})
    if fine:
        options.with_tables_below("/work/job")
        return
    with pytest.raises(OptionError, match="flightLog and deadLetterTable must name two folders"):
        options.with_tables_below("/work/job")
