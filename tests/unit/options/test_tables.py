"""Tables of configuration files, read by what a dataclass declares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.options import camel
from mama_spark.options.declare import option
from mama_spark.options.tables import parse_table, read_toml
from mama_spark.options.times import duration, duration_or_none
from mama_spark.options.values import integer, nonempty_text

from tests.support.tables import each


@dataclass(frozen=True)
class Table:
    """An example."""

    max_age: float = option("duration", duration_or_none, 60.0, "table", "How long.")
    max_rows: int = option("integer", integer(1), 10, "table", "How many.")
    pause: float = option("duration", duration, 1.0, "table", "Between rows.")
    secret_key: str | None = option("text", nonempty_text, None, "table", "Not shown.", secret=True)
    host: str = "undeclared"


def test_values_stand_by_field_and_defaults_stay_out() -> None:
    assert parse_table(Table, {"max_age": "2h", "max_rows": 3}, "[t]") == {"max_age": 7200.0, "max_rows": 3}
    assert parse_table(Table, {"maxRows": 3}, "[t]", camel) == {"max_rows": 3}
    assert parse_table(Table, {}, "[t]") == {}


@each(
    ("table", "error"),
    [
        (1, r"^\[t\] is a table"),
        ({"max_rowz": 1}, r"^\[t\] unknown key 'max_rowz'; did you mean 'max_rows'\?$"),
        ({"zz": 1}, "unknown key 'zz'; there are max_age, max_rows, pause, secret_key$"),
        ({"host": "h"}, "unknown key 'host'"),
        ({"max_rows": 0}, r"^\[t\] max_rows must be from 1 to \d+, got 0$"),
        ({"secret_key": 17}, r"^\[t\] secret_key must be a text$"),
        ({"pause": 1}, r"^\[t\] the key max_rows is missing$"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_shown(table: object, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_table(Table, table, "[t]", required=("max_rows",) if table == {"pause": 1} else ())


def test_a_duration_in_a_file_has_a_unit() -> None:
    assert parse_table(Table, {"max_age": 0, "pause": "250ms"}, "[t]") == {"max_age": 0.0, "pause": 0.25}
    with pytest.raises(ConfigError, match=r"\[t\] max_age must be a duration, such as .* \(with its unit\), got 90$"):
        parse_table(Table, {"max_age": 90}, "[t]")


def test_variables_of_the_environment_are_replaced_in_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMA_WORD", "hush")
    path = tmp_path / "f.toml"
    path.write_text('[a]\nx = "${MAMA_WORD}!"\ny = ["${MAMA_WORD}", 1]\n[[b]]\nz = "$MAMA_WORD"\n')
    assert read_toml(path) == {"a": {"x": "hush!", "y": ["hush", 1]}, "b": [{"z": "$MAMA_WORD"}]}
    path.write_text('[a]\nx = "${MAMA_NOT_SET}"\n')
    with pytest.raises(ConfigError, match=r"f\.toml: \[a\] x: the environment variable MAMA_NOT_SET is not set"):
        read_toml(path)
