"""Settings of the recorder of OpenMAMA messages, and what its configuration file shows."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.openmama.recorder.settings import OpenMamaRecorderSettings
from mama_spark.options.declare import option_names

from tests.support.tables import each

ROOT = Path(__file__).resolve().parents[4]
OZ = "oz://127.0.0.1:5756"


def test_the_configuration_file_shows_all_settings_with_their_defaults() -> None:
    lines = (ROOT / "conf" / "openmama-record.toml").read_text().partition("[log]")[0].splitlines()
    shown = [line.removeprefix("# ") for line in lines if re.match(r"(# )?\w+ = ", line)]
    given = tomllib.loads("\n".join(shown))
    assert {*given, "url"} == {"url", *option_names(OpenMamaRecorderSettings)}
    found = OpenMamaRecorderSettings.of(given)
    assert found == OpenMamaRecorderSettings(found.peer, found.topics, found.symbols, metrics=found.metrics)


def test_topics_are_exact_or_beginnings_and_symbols_are_topics() -> None:
    found = OpenMamaRecorderSettings.of({"url": OZ, "topics": "A, OM.>, >", "symbols": "OM.BRK.B, OM.IBM"})
    assert found.symbols == (("OM", "BRK.B"), ("OM", "IBM"))
    assert found.exact_topics == ["A", "OM.BRK.B", "OM.IBM"]
    assert found.topic_prefixes == ["OM.", ""]
    assert found.dictionary_sources == ["OM", "WOMBAT"]


@pytest.mark.spec("OW15")
def test_publishers_that_do_not_survive_requests_get_none() -> None:
    found = OpenMamaRecorderSettings.of({"url": "zmq://127.0.0.1:5557", "symbols": "OM.IBM"})
    assert not found.may_request
    assert found.dictionary_sources == []
    assert replace(found, peer=replace(found.peer, allow_requests=True)).may_request  # all of them are repaired


@each(
    ("given", "text"),
    [
        ({"topics": "A"}, "the key url is missing"),
        ({"url": OZ}, "names nothing to record"),
        ({"url": OZ, "symbols": "IBM"}, "SOURCE.SYMBOL"),
        ({"url": OZ, "topics": "_INBOX.x"}, "OpenMAMA's own"),
        ({"url": OZ, "topics": "A", "devices": "x"}, "devices"),
        ({"url": OZ, "topics": "A", "name": "a b"}, "letters, digits"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        OpenMamaRecorderSettings.of(given)
