"""NATS_URL and contexts of the program ``nats``: what wins, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.options.nats_environment import has_other_place, with_nats_environment

BOB = {"url": "nats://bob:4222", "user": "bob", "password": "pw", "ca": "/ca.pem", "creds": "", "description": "x"}
OF_BOB = {"url": "nats://bob:4222", "user": "bob", "password": "pw", "tlsCa": "/ca.pem"}

EVE = {"url": "tls://eve:4222", "credentials": "/eve.creds", "tlsHandshakeFirst": "True"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    context(tmp_path, "bob", BOB)
    context(tmp_path, "far", {"url": "nats://hub:4222", "jetstream_domain": "leaf"})
    context(tmp_path, "acme", {"url": "nats://hub:4222", "jetstream_api_prefix": "JS.acme"})
    context(tmp_path, "eve", {"url": "tls://eve:4222", "creds": "/eve.creds", "tls_first": True})
    return tmp_path


def context(home: Path, name: str, content: Any) -> None:
    folder = home / ".config" / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("given", "environ", "selected", "expected"),
    [
        ({}, {}, "", {}),
        ({}, {"NATS_URL": "nats://a:1"}, "bob", {"url": "nats://a:1"}),
        ({"URL": "mlp://b:1"}, {"NATS_URL": "nats://a:1", "NATS_CONTEXT": "bob"}, "", {"URL": "mlp://b:1"}),
        ({"user": "al"}, {"NATS_URL": "nats://a:1"}, "bob", {"user": "al", "url": "nats://a:1"}),
        ({}, {}, "bob", OF_BOB),
        ({}, {"NATS_CONTEXT": "eve"}, "bob", EVE),
        ({}, {}, "far", {"url": "nats://hub:4222", "jsDomain": "leaf"}),
        ({"jsdomain": "hub"}, {}, "acme", {"url": "nats://hub:4222", "jsdomain": "hub"}),
        ({"token": "t"}, {}, "bob", {"token": "t", "url": "nats://bob:4222", "tlsCa": "/ca.pem"}),
        ({"tlsca": "/own.pem"}, {}, "bob", {**OF_BOB, "tlsca": "/own.pem"} | {"tlsCa": None}),
    ],
)
def test_the_first_that_says_it_wins(
    home: Path, given: dict[str, str], environ: dict[str, str], selected: str, expected: dict[str, str | None]
) -> None:
    (home / ".config" / "nats" / "context.txt").write_text(selected)
    found = with_nats_environment(given, {"HOME": str(home), **environ})
    assert found == {name: value for name, value in expected.items() if value is not None}


def test_the_folder_is_that_of_the_desktop(home: Path, tmp_path: Path) -> None:
    environ = {"HOME": "/none", "XDG_CONFIG_HOME": str(home / ".config"), "NATS_CONTEXT": "bob"}
    assert with_nats_environment({}, environ) == OF_BOB


@pytest.mark.parametrize(
    "content", [["a list"], {"url": "nats://a", "socks_proxy": "proxy:1080"}, {"nsc": "nsc://o/a/u"}]
)
def test_a_context_that_cannot_be_followed_is_refused(home: Path, content: Any) -> None:
    context(home, "odd", content)
    with pytest.raises(ConfigError, match=r"the NATS context 'odd' .*give option url"):
        with_nats_environment({}, {"HOME": str(home), "NATS_CONTEXT": "odd"})


def test_a_context_that_is_not_there_is_refused_and_its_content_not_shown(home: Path) -> None:
    (home / ".config" / "nats" / "context" / "odd.json").write_text('{"password": "hunter2"')
    for name in ("none", "odd"):
        with pytest.raises(ConfigError) as caught:
            with_nats_environment({}, {"HOME": str(home), "NATS_CONTEXT": name})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "found", "other"),
    [
        ({"URL": "nats://a:1"}, {}, True),
        ({"URL": "nats://a:1"}, {"url": "nats://a:1", "user": "bob"}, False),
        ({"url": "nats://a:1"}, {"url": "nats://b:1"}, True),
        ({"properties": "/a"}, {"transport": "desk", "properties": "/b"}, True),
        ({"properties": "/a"}, {"url": "nats://a:1"}, False),
    ],
)
def test_options_with_another_place_take_nothing_of_their_defaults(
    given: dict[str, str], found: dict[str, str], other: bool
) -> None:
    assert has_other_place(given, found) is other
