"""The examples and permissions of the pages on discovery run as written, and every column, kind and event is listed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.mama.discovery.discovery_rows import (
    BAD_RECORD,
    GAP,
    IMAGE_END,
    PUBLISHER,
    SOURCE,
    SOURCE_OFFLINE,
    SOURCE_ONLINE,
    SOURCE_SUSPECT,
    SOURCE_UNKNOWN,
    DiscoveryRow,
    DiscoveryRowReader,
)
from mama_spark.mama.messages.event_records import CREATE, DESTROY, ERROR, LIVE, TOPIC
from mama_spark.mama.states import TransportTopicEvent
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import DiscoveryOptions
from mama_spark.registry import discovery_bridge
from mama_spark.testing.waiting import eventually

from tests.support.mama.discovery_harness import ForeignAnnouncer, create_streams, desk

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference" / "discovery.md").read_text(encoding="utf-8")
PAGES = REFERENCE + (DOCS / "how-to" / "announce-a-source.md").read_text(encoding="utf-8")
KINDS = (SOURCE, PUBLISHER, TOPIC, IMAGE_END, GAP)
EVENTS = (SOURCE_ONLINE, SOURCE_SUSPECT, SOURCE_OFFLINE, SOURCE_UNKNOWN, BAD_RECORD, CREATE, LIVE, ERROR, DESTROY,
          *TransportTopicEvent)  # fmt: skip


def snippet(name: str) -> str:
    found = re.search(rf"<!-- run: {name} -->\n```\w*\n(.*?)```", PAGES, re.DOTALL)
    assert found is not None, f"the pages have no example {name!r}"
    return found[1]


def test_the_page_has_every_column_kind_and_event() -> None:
    cells = {cell.strip() for line in REFERENCE.splitlines() if line.startswith("|") for cell in line.split("|")[1:2]}
    assert set(DiscoveryRow._fields) <= {name.strip() for cell in cells for name in cell.split(",")}
    for word in (*KINDS, *EVENTS):
        assert f"`{word}`" in REFERENCE


def changes(url: str, begin: str = "earliest") -> list[DiscoveryEvent]:
    bridge = discovery_bridge(DiscoveryOptions.parse({"url": url}))
    bridge.open()
    try:
        start = bridge.initial_offset(begin)
        return [change for part in bridge.read(start, bridge.latest_offset(start)) for change in part]
    finally:
        bridge.close()


def test_the_example_announces_lives_and_ends_in_order(nats_server: NatsServer, tmp_path: Path) -> None:
    create_streams(nats_server.url)
    script = tmp_path / "announce.py"
    script.write_text(snippet("announce"))
    ran = subprocess.run([sys.executable, str(script), nats_server.url], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = eventually(lambda: len(told := changes(nats_server.url)) >= 2 and told, "both records")
    rows = list(DiscoveryRowReader("nats", "t").rows(found))
    assert [(row.kind, row.event, row.source_name, row.source_id) for row in rows] == [
        ("source", "online", "prices", 7),
        ("source", "offline", "prices", 7),
    ]
    assert (rows[0].source_data_state, rows[0].capabilities, rows[0].info) == ("OK", {"Region": "eu"}, None)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[NatsServer]:
    """A server with the permissions of the page, and an operator who made the streams."""
    roles = dict(re.findall(r"^(\w+): \{\n(.*?)^\}", snippet("permissions"), re.DOTALL | re.MULTILINE))
    assert set(roles) == {"reader", "announcer"}
    users = ["{user: operator, password: p}"]
    users += [f"{{user: {name}, password: p, permissions: {{\n{body}}}}}" for name, body in roles.items()]
    with NatsServer(tmp_path / "nats", config=f"authorization {{ users = [\n{', '.join(users)}\n] }}\n") as server:
        create_streams(server.url.replace("://", "://operator:p@"))
        yield server


def test_the_permissions_of_the_page_are_enough(guarded: NatsServer) -> None:
    announcer = discovery_bridge(DiscoveryOptions.parse({"url": guarded.url, "user": "announcer", "password": "p"}))
    announcer.open()
    try:
        announcer.announce(SourceKey("desk", 7), b"on", 30.0)
        announcer.publish_events(SourceKey("desk", 7), [b"event"], ["1"])
        announcer.withdraw(SourceKey("desk", 7), b"off")
    finally:
        announcer.close()
    url = guarded.url.replace("://", "://reader:p@")
    with ForeignAnnouncer(guarded.url, user="operator", password="p") as operator:
        operator.create_stream("ORDERS", ["orders.>"])
        operator.consumer("ORDERS", "desk", "orders.eu")
        kinds = {DiscoveryEventKind.RECORD, DiscoveryEventKind.EVENT, DiscoveryEventKind.SUBSCRIBED}
        eventually(lambda: kinds <= {change.kind for change in changes(url)}, "all of it is read")
    assert changes(url, "image")[-1].kind is DiscoveryEventKind.IMAGE_END


def test_a_reader_may_not_announce_and_is_told_what_is_missing(guarded: NatsServer) -> None:
    reader = discovery_bridge(DiscoveryOptions.parse({"url": guarded.url, "user": "reader", "password": "p"}))
    reader.open()
    try:
        with pytest.raises(ConfigError, match=re.escape("_MAMA_SOURCE_DISCOVERY.source.desk.7.")):
            reader.announce(SourceKey("desk", 7), desk(7).name.encode(), 30.0)
    finally:
        reader.close()
