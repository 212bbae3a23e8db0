from __future__ import annotations

from dataclasses import fields

import pytest
from mama_spark import memory
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.middlewares import MIDDLEWARES, Middleware
from mama_spark.memory import MemoryBridge
from mama_spark.options import SinkOptions
from mama_spark.registry import (
    UnsupportedFeature,
    attach,
    connect,
    discovery_bridge,
    log_bridge,
    part,
    publisher_bridge,
)


@pytest.mark.parametrize("url", ["kafka://user:secret@host:1", "http://user:secret@host"])
def test_a_url_without_a_bridge_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="unknown scheme") as caught:
        connect(url)
    assert url.partition("://")[0] in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_middleware_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are nats"):
        part("kafka", "publisher_bridge")


def test_every_part_of_a_middleware_is_where_its_entry_says() -> None:
    for one in MIDDLEWARES.values():
        for f in fields(one):
            if str(getattr(one, f.name)).startswith("mama_spark."):
                assert part(one.name, f.name) is not None


def test_a_bridge_is_attached_as_it_is() -> None:
    bridge = MemoryBridge("attached")
    assert attach(bridge) is bridge


def test_what_a_middleware_does_not_name_it_does_not_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIDDLEWARES, "bare", Middleware("bare", "Bare", ("bare",)))
    o = SinkOptions(bridge="bare")
    for ask, why in (
        (lambda: publisher_bridge(o), "cannot publish"),
        (lambda: discovery_bridge(o), "no source discovery"),
        (lambda: log_bridge(o, 1.0), "keeps no log"),
    ):
        with pytest.raises(UnsupportedFeature, match=f"'bare'.*{why}"):
            ask()

    here = Middleware("bare", "Bare", ("bare",), publisher_bridge="mama_spark.memory:publisher_bridge")
    monkeypatch.setitem(MIDDLEWARES, "bare", here)
    publishing, place = connect(o)
    assert isinstance(publishing, MemoryBridge)
    assert place is None


def test_an_option_that_discovery_refuses_is_no_missing_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(o: SinkOptions) -> None:
        raise ConfigError("no such stream name")

    monkeypatch.setattr(memory, "discovery_bridge", refuse)
    with pytest.raises(ConfigError, match="no such stream name"):
        connect("memory://refused")
