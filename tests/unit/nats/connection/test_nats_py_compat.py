"""The private names of nats-py: all in one module, probed, and missing ones named."""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import logging
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.connection import nats_py_compat as compat
from nats.aio.client import Client

ROOT = Path(__file__).resolve().parents[4]
BRIDGE = ROOT / "connector/mama_spark/nats"
ATTACHED = ("_error_cb", "_disconnected_cb", "_reconnected_cb", "_closed_cb", "_reading_task")


@pytest.fixture(autouse=True)
def every_warning_anew() -> None:
    compat._warn.cache_clear()


def test_the_installed_version_has_all_names() -> None:
    assert compat.missing_names(Client()) == {}
    assert compat.version_tried(compat.installed_version())
    assert compat.fast_path_usable(Client())


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> Client:
    """A client of a version of nats-py that does not have ``name``."""
    owner, _, attribute = name.partition(".")
    client = Client()
    if owner == "Client":
        found: Any = SimpleNamespace(**{k: v for k, v in vars(client).items() if k != attribute})
        for method in {"_attempt_reconnect", "_process_err", "_connect_command"} - {attribute}:
            setattr(found, method, getattr(client, method))
        if attribute == "_process_info":
            monkeypatch.setattr(compat, "_process_info", lambda: None)
        client = found
    elif owner == "StreamReader":
        monkeypatch.setattr(asyncio, "StreamReader", type("StreamReader", (), {}))
    else:
        monkeypatch.setattr(compat, owner, type(owner, (), {}))
    return client


@pytest.mark.parametrize("name", [each.name for each in compat.PRIVATE_NAMES])
def test_a_name_that_is_missing_is_named_with_what_needs_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    missing = compat.missing_names(without(monkeypatch, name))
    assert name in missing
    same_owner = {other for other in missing if other.partition(".")[0] == name.partition(".")[0]}
    assert set(missing) == same_owner, "and nothing else"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("_ps", object()),
        ("_ps", SimpleNamespace(parse=print, reset=print)),
    ],
)
def test_a_name_of_another_kind_counts_as_missing(attribute: str, value: object) -> None:
    client: Any = Client()
    setattr(client, attribute, value)
    assert compat.missing_names(client) == {f"Client.{attribute}": compat.FAST_PATH}
    assert not compat.fast_path_usable(client)


def test_the_log_says_once_why_the_fast_path_is_off(caplog: pytest.LogCaptureFixture) -> None:
    client: Any = Client()
    del client._transport
    with caplog.at_level(logging.WARNING):
        assert [compat.fast_path_usable(client) for _ in range(3)] == [False] * 3
    (warning,) = caplog.messages
    assert f"nats-py {compat.installed_version()} is installed" in warning
    assert "2.16 up to but without 3.0 were tried" in warning
    assert "Client._transport is not as expected" in warning


def test_reads_with_copies_are_warned_of_and_keep_the_fast_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert compat.fast_path_usable(without(monkeypatch, "StreamReader._buffer"))
    assert "StreamReader._buffer is not as expected" in caplog.text


@pytest.mark.parametrize("version", ["2.15.9", "3.0.0", "", "next", "2"])
def test_a_version_that_was_not_tried_switches_the_fast_path_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda: version)
    with caplog.at_level(logging.WARNING):
        assert not compat.fast_path_usable(Client())
    assert f"nats-py {version or 'of an unknown version'} is installed" in caplog.text


def test_the_floor_of_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = (d for d in project["dependencies"] if d.startswith("nats-py"))
    low, high = re.search(r">=([\d.]+),<([\d.]+)$", needed).groups()  # type: ignore[union-attr]
    assert tuple(map(int, low.split("."))) == compat.VERSIONS[0]
    assert int(high) == compat.VERSIONS[1][0]


def test_tls_is_not_used_where_credentials_might_go_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(compat.new_client(tls=True), compat.TlsClient)
    monkeypatch.setattr(compat, "_process_info", lambda: None)
    with pytest.raises(ConfigError, match=r"Client\._process_info.*install nats-py>=2\.16,<3"):
        compat.new_client(tls=True)


def test_a_distribution_without_metadata_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert compat.installed_version() == ""


def test_the_loop_of_a_context_is_found_or_asked_for() -> None:
    async def work() -> None:
        here = asyncio.get_running_loop()
        reading = asyncio.ensure_future(asyncio.sleep(0))
        assert compat.loop_of(SimpleNamespace(_nc=SimpleNamespace(_reading_task=reading))) is here
        assert compat.loop_of(object()) is here
        await reading

    asyncio.run(work())
    with pytest.raises(ConfigError, match="give it as loop="):
        compat.loop_of(object())


def private_names(path: Path) -> set[str]:
    """Attributes that begin with one underscore and are read of something other than ``self`` or ``cls``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    own |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and _of_self(n)}
    return {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and re.match(r"_[a-z]", n.attr) and not _of_self(n) and n.attr not in own
    }


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_no_other_module_of_the_bridge_touches_a_private_name() -> None:
    known = {each.name.partition(".")[2] for each in compat.PRIVATE_NAMES}
    found = {p.relative_to(BRIDGE).as_posix(): private_names(p) for p in BRIDGE.rglob("*.py")}
    here = found.pop("connection/nats_py_compat.py")
    assert here - known <= {"_id"} | set(ATTACHED) | known
    assert {path: names for path, names in found.items() if names} == {}
