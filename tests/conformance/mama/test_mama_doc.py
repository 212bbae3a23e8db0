"""The pages on OpenMAMA: what they name exists, and their examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mama_spark.mama
import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama import SourceRecord
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import encode_source
from mama_spark.memory import MemoryBroker
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin

ROOT = Path(__file__).resolve().parents[3]
PAGES = (
    "docs/how-to/publish-with-openmama.md",
    "docs/explanation/openmama.md",
    "tests/specifications/publisher-events.md",
    "tests/specifications/source-discovery.md",
)
TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```", TEXT)


@pytest.mark.spec("PE-18")
def test_the_example_of_a_publisher_runs(nats_server: NatsServer) -> None:
    """In the order of the specification"""
    expected = [("created", "LIVE"), ("stored", "OK"), ("destroyed", "DESTROYING")]
    MemoryBroker.forget("demo")
    with Admin(nats_server.url) as admin:
        admin.create_stream("NYSE", ["NYSE.>"])
        for url in ("memory://demo", nats_server.url):
            names: dict[str, Any] = {}
            exec(EXAMPLES[0].replace("memory://demo", url), names)
            assert names["heard"] == expected
        assert [m.topic for m in admin.messages("NYSE")] == ["NYSE.IBM"]
    assert [m.topic for m in MemoryBroker.get("demo").messages()] == ["NYSE.IBM"]
    MemoryBroker.forget("demo")


def test_the_example_of_source_discovery_runs() -> None:
    MemorySources.forget("demo")
    source = MemoryDiscovery("demo")
    source.open()
    source.announce(SourceKey("desk", 1), encode(encode_source(SourceRecord("desk", 1, "ONLINE"))), 30.0)
    names: dict[str, Any] = {}
    exec(EXAMPLES[1], names)
    assert names["found"] == [("desk", "ONLINE"), ("end of the image",)]
    source.close()
    MemorySources.forget("demo")


def test_what_the_pages_name_exists() -> None:
    for name in re.findall(r"`((?:Publisher|Transport|SourceDiscovery|DQPublisher|BridgePublisher)\.\w+)", TEXT):
        kind, method = name.split(".")
        assert hasattr(getattr(mama_spark.mama, kind), method), name
    for name in re.findall(r"from mama_spark.mama import (.*)", TEXT)[0].split(", "):
        assert name in mama_spark.mama.__all__
