from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.contracts.bridge import DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources


@pytest.fixture
def registry() -> Iterator[MemorySources]:
    name = uuid4().hex
    yield MemorySources.get(name)
    MemorySources.forget(name)


def test_expiry_is_reported_with_the_time_at_which_it_happened(registry: MemorySources) -> None:
    bridge = MemoryDiscovery(registry.name)
    bridge.open()
    bridge.announce(SourceKey("s", 1), b"r", 30.0)
    bridge.close()
    registry.advance(1000.0)
    bridge.open()
    _, suspect, offline = (
        c
        for block in bridge.read({"log": registry.identity, "next": 1}, {"log": registry.identity, "next": 4})
        for c in block
    )
    assert (suspect.kind, offline.kind) == (DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE)
    assert offline.at - suspect.at == pytest.approx(15e6, abs=1e4)


def test_a_registry_that_is_down_cannot_be_reached(registry: MemorySources) -> None:
    bridge = MemoryDiscovery(registry.name)
    bridge.open()
    registry.up = False
    with pytest.raises(Unavailable, match="down"):
        bridge.image()
    with pytest.raises(Unavailable, match="down"):
        MemoryDiscovery(registry.name).open()


@pytest.mark.parametrize("where", ["now", (("other", 1),), ((("a", 1)), ("b", 2))])
def test_a_place_to_begin_that_does_not_exist_is_refused(registry: MemorySources, where: object) -> None:
    bridge = MemoryDiscovery(registry.name)
    bridge.open()
    with pytest.raises(ConfigError, match=r"discovery begins at|the only log of discovery"):
        bridge.initial_offset(where)  # type: ignore[arg-type]


def test_an_image_that_was_not_saved_cannot_be_read(registry: MemorySources) -> None:
    bridge = MemoryDiscovery(registry.name)
    bridge.open()
    with pytest.raises(ConfigError, match="never saved"):
        list(bridge.read(bridge.initial_offset("image"), bridge.initial_offset("latest")))
    with pytest.raises(ConfigError, match="positive"):
        bridge.announce(SourceKey("s", 1), b"r", 0)
