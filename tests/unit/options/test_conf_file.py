"""Configuration files of the jobs, and their tables."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.options import FORMATS, SinkOptions, SubscribeOptions, camel
from mama_spark.options.conf_file import as_options, load
from mama_spark.options.declare import option
from mama_spark.options.tables import parse_table, read_toml
from mama_spark.options.times import duration, duration_or_none
from mama_spark.options.values import integer, nonempty_text

from tests.support.tables import each

CONF = Path(__file__).resolve().parents[3] / "conf"


def write(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_options_keep_their_types_and_reach_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMA_TEST_TOKEN", "s3cret")
    path = write(
        tmp_path,
        '[mamapub]\nurl = ["nats://a:1", "nats://b:2"]\ndedup = false\nmaxInFlight = 100\nrefillAllowedAt = 50\n'
        'token = "${MAMA_TEST_TOKEN}"\nwaitTimeout = "2s"\nstorage.region = "eu"\n[input]\nselect = ["a", "b"]\n',
    )
    conf = load(path)
    assert conf["mamapub"]["dedup"] is False
    assert conf["mamapub"]["maxInFlight"] == 100
    assert conf["input"] == {"select": ["a", "b"]}
    assert conf["stream"] == {}
    options = SinkOptions.parse(as_options(conf["mamapub"]))
    assert options.url == ("nats://a:1", "nats://b:2")
    assert (options.dedup, options.token, options.wait_timeout) == (False, "s3cret", 2.0)
    assert options.storage_options == {"region": "eu"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[mamapub]\nackmod = 'batch'\n", ["[mamapub]", "'ackmod'", "'ackMode'"]),
        ("[mamapubb]\n", ["[mamapubb]", "'mamapub'"]),
        ("url = 'nats://a'\n", ["'url'", "[mamapub]"]),
        ("[mamapub]\nurl = '${MAMA_NOT_SET}'\n", ["[mamapub] url", "MAMA_NOT_SET"]),
        ("[mamapub]\ntoken = '${file:/not/there}'\n", ["[mamapub] token", "/not/there", "No such file"]),
        ("[mamapub]\nurl = 2020-01-01\n", ["[mamapub] url", "text"]),
        ("[mamapub\n", ["not TOML"]),
    ],
)
def test_errors_name_file_table_key_and_the_nearest_name(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert all(part in str(caught.value) for part in [str(path), *parts]), str(caught.value)


def test_a_secret_may_be_the_content_of_a_file(tmp_path: Path) -> None:
    """Without its last line break, with which most files end; whatever else it holds stays as it is."""
    (tmp_path / "password").write_bytes(b" p${HOME}w\n")
    (tmp_path / "token").write_bytes(b"t\r\n")
    text = (
        f"[mamapub]\nuser = 'joe'\npassword = '${{file:{tmp_path}/password}}'\ntoken = 'x${{file:{tmp_path}/token}}'\n"
    )
    found = load(write(tmp_path, text))["mamapub"]
    assert (found["password"], found["token"]) == (" p${HOME}w", "xt")


def test_a_file_that_is_not_there_is_named_and_what_is_not_text_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"s3cret\xff")
    path = write(tmp_path, f"[mamapub]\ntoken = '${{file:{tmp_path}/key}}'\n")
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        load(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        load(path)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


@each("path", [p for p in sorted(CONF.glob("*.toml")) if re.search(r"^\[mama", p.read_text(), re.M)])
def test_the_files_in_conf_are_understood(path: Path) -> None:
    conf = load(path, tables=tomllib.loads(path.read_text()))
    streams = {"stream": "of the flight log"} if "audit" in conf else {}
    for name in FORMATS.keys() & conf.keys():
        FORMATS[name].parse(as_options(conf[name]) | streams)


def test_each_format_has_its_own_options_and_lists_of_topics_become_one_text(tmp_path: Path) -> None:
    text = '[mamasub]\ntopics = ["orders.>", "trades.*"]\nmaxOffsetsPerTrigger = 1000\n'
    options = SubscribeOptions.parse(as_options(load(write(tmp_path, text), ("mamasub",))["mamasub"]))
    assert (options.topics, options.max_offsets_per_trigger) == (("orders.>", "trades.*"), 1000)
    for key in ("ackMode", "storage.region"):
        path = write(tmp_path, f'[mamasub]\ntopics = "a"\n{key} = "batch"\n')
        with pytest.raises(ConfigError, match=rf"\[mamasub\] option {key} is of mamapub, not of mamasub"):
            load(path, ("mamasub",))


def test_numbers_and_lists_of_texts_are_values_and_other_lists_are_not(tmp_path: Path) -> None:
    path = write(tmp_path, "[mamapub]\nmaxRatePerPartition = 1.5\nflightLogColumns = ['a', 'b']\n")
    assert as_options(load(path)["mamapub"]) == {"maxRatePerPartition": "1.5", "flightLogColumns": "a,b"}
    with pytest.raises(ConfigError, match="flightLogColumns"):
        load(write(tmp_path, "[mamapub]\nflightLogColumns = [1]\n"))


# --- Tables of configuration files, read by what a dataclass declares -------------------------------------------------


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
        ({"host": "h"}, "unknown key 'host'; there are max_age, max_rows, pause, secret_key$"),
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
