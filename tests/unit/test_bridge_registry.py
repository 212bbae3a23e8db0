from __future__ import annotations

import pytest
from mama_spark.bridges import attach, load, scheme_of
from mama_spark.bridges.memory import MemoryBridge
from mama_spark.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "name"),
    [("nats://a:1", "nats"), ("TLS://a", "nats"), (" memory://x", "memory"), ("mlp://h:1/s", "malamute"),
     ("tango://h", "tango"), ("nats://a,nats://b", "nats")],
)  # fmt: skip
def test_scheme_picks_the_bridge(url: str, name: str) -> None:
    assert scheme_of(url) == name


def test_a_url_without_a_bridge_is_refused_without_showing_its_password() -> None:
    with pytest.raises(ConfigError, match="schemes are nats") as caught:
        scheme_of("kafka://host:1")
    assert "kafka" in str(caught.value)
    for url in ("http://user:secret@host", "user:secret@host"):
        with pytest.raises(ConfigError) as caught:
            scheme_of(url)
        assert "secret" not in str(caught.value)


def test_bridges_are_loaded_by_name_and_unknown_ones_refused() -> None:
    assert load("memory").MemoryBridge is MemoryBridge
    with pytest.raises(ConfigError, match="there are nats"):
        load("kafka")


def test_a_bridge_is_attached_as_it_is() -> None:
    bridge = MemoryBridge("attached")
    assert attach(bridge) is bridge
