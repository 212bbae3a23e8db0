"""The pages on Tango: their examples are understood, their tables are true."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from mama_spark.cli.main import parse
from mama_spark.options import SinkOptions, SubscribeOptions, option_names
from mama_spark.options.conf_file import load
from mama_spark.tango.bridge import RecordCodec
from mama_spark.tango.bridge.columns import COLUMNS
from mama_spark.tango.commands.tango_source import read_rules
from mama_spark.tango.recorder.settings import TangoRecorderSettings

ROOT = Path(__file__).parents[3]
GUIDES = "".join(
    (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("record-tango-events", "serve-tango-events")
)
PAGE = (ROOT / "docs" / "reference" / "tango.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].split()[1:]
    for block in re.findall(r"```\n(.*?)```", GUIDES, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("mama ")
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_are_understood(words: list[str]) -> None:
    found: argparse.Namespace = parse(words)
    assert callable(found.run)


def test_the_options_of_the_examples_are_understood() -> None:
    examples = re.findall(r"```python\n(.*?)```", GUIDES, re.DOTALL)
    for example in examples:
        compile(example, "example", "exec")
    reading, writing = (
        dict(re.findall(r'\.option\("(\w+)", "([^"]+)"\)', example)) for example in examples[:2]
    )  # fmt: skip
    assert SubscribeOptions.parse(reading).tango
    assert SinkOptions.parse(writing).bridge_name == "tango"


def test_the_columns_of_the_sink_are_described() -> None:
    table = PAGE.split("| column | type | |\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [*COLUMNS]


def test_the_configuration_files_are_understood() -> None:
    assert load(ROOT / "conf" / "tango-archive.toml", ("mamasub", "archive", "stream"))["mamasub"]["stream"] == "TANGO"
    (rule,) = read_rules(ROOT / "conf" / "tango-source.toml")
    assert rule.abs_change == 0.5


def test_the_configuration_of_the_recorder_shows_all_settings() -> None:
    """Also those that are comments, with their defaults."""
    lines = (ROOT / "conf" / "tango-record.toml").read_text().partition("[log]")[0].splitlines()
    shown = [line.removeprefix("# ") for line in lines if re.match(r"(# )?\w+ = ", line)]
    given = tomllib.loads("\n".join(shown))
    assert {*given, "url"} == {"url", *option_names(TangoRecorderSettings)}
    found = TangoRecorderSettings.of({name: value for name, value in given.items() if name != "hwm"})
    assert found == TangoRecorderSettings(found.host, found.devices, metrics=found.metrics)


def test_the_topic_of_a_record_is_as_it_is_described() -> None:
    rows = {"device": ["Sys/TG_test/1"], "attribute": ["Double_Scalar"], "value": pa.array([1.0])}
    (topic,) = RecordCodec("lab", "tango").encode(pa.RecordBatch.from_pydict(rows)).topics.to_pylist()
    assert topic == "tango.lab.sys.tg_test.1.double_scalar.change"
