from __future__ import annotations

import sys
from types import ModuleType

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.middlewares import MIDDLEWARES, SCHEMES, Middleware
from mama_spark.memory import MemoryBridge
from mama_spark.options import SinkOptions
from mama_spark.registry import (
    UnsupportedFeature,
    attach,
    connect,
    discovery_bridge,
    load,
    log_bridge,
    publisher_bridge,
)

from tests.support.tables import each


@pytest.mark.parametrize("url", ["kafka://user:secret@host:1", "http://user:secret@host"])
def test_a_url_without_a_bridge_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="unknown scheme") as caught:
        connect(url)
    assert url.partition("://")[0] in str(caught.value)
    assert "secret" not in str(caught.value)


def test_bridges_are_loaded_by_name_and_unknown_ones_refused() -> None:
    assert load("memory").MemoryBridge is MemoryBridge
    with pytest.raises(ConfigError, match="there are nats"):
        load("kafka")


@each("name", sorted(set(SCHEMES.values())))
def test_every_bridge_of_a_url_can_be_loaded_and_publishes(name: str) -> None:
    assert callable(load(name).publisher_bridge)


def test_a_bridge_is_attached_as_it_is() -> None:
    bridge = MemoryBridge("attached")
    assert attach(bridge) is bridge


def test_what_a_bridge_does_not_export_it_does_not_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = ModuleType("bare")
    monkeypatch.setitem(sys.modules, bare.__name__, bare)
    monkeypatch.setitem(MIDDLEWARES, "bare", Middleware("bare", "bare", "Bare", ("bare",)))
    o = SinkOptions(bridge="bare")
    for ask, why in (
        (lambda: publisher_bridge(o), "cannot publish"),
        (lambda: discovery_bridge(o), "no source discovery"),
        (lambda: log_bridge(o, 1.0), "keeps no log"),
    ):
        with pytest.raises(UnsupportedFeature, match=f"'bare'.*{why}"):
            ask()

    bare.publisher_bridge = lambda o: MemoryBridge("bare")  # type: ignore[attr-defined]
    publishing, place = connect(o)
    assert isinstance(publishing, MemoryBridge)
    assert place is None


def test_an_option_that_discovery_refuses_is_no_missing_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(o: SinkOptions) -> None:
        raise ConfigError("no such stream name")

    monkeypatch.setattr(load("memory"), "discovery_bridge", refuse)
    with pytest.raises(ConfigError, match="no such stream name"):
        connect("memory://refused")
