"""What ``mama sources`` and ``mama events`` follow."""

from __future__ import annotations

from itertools import islice
from uuid import uuid4

import pytest
from mama_spark.bridge import SourceKey
from mama_spark.bridges.memory.discovery import MemoryDiscovery, MemorySources
from mama_spark.console import discovery_follow as follow
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import SourceRecord, encode_source
from mama_spark.options import ANY_USE


def test_a_long_past_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_AT_ONCE", 2)
    name = uuid4().hex
    source = MemoryDiscovery(name)
    source.open()
    for i in range(5):
        source.announce(SourceKey("s", i), encode(encode_source(SourceRecord("s", i, "ONLINE"))), 60.0)
    place = follow.DiscoveryFollower.of({"url": f"memory://{name}"}, ANY_USE)
    slept: list[float] = []
    parts = list(islice(place.changes(place.initial_offset("earliest"), slept.append), 4))
    assert [[row.source_id for row in rows] for rows in parts] == [[0, 1], [2, 3], [4], []]
    assert slept == [], "it goes on at once while there is more"
    place.close()
    source.close()
    MemorySources.forget(name)
