"""Bridges of discovery over a real server, and processes that announce."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.discovery.layout import ADVISORIES, DiscoveryLayout
from mama_spark.nats.discovery.lease import NatsLeases
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.testing.waiting import eventually

from tests.support.discovery_follower import DESK
from tests.support.nats.nats_servers import Admin

Opened = Callable[..., NatsDiscovery]
TTL = 2.0  #: of sources that shall expire
LONG = 60.0  #: of those that shall not, however busy the machine is


@pytest.fixture
def opened(nats_server: NatsServer) -> Iterator[Opened]:
    """Bridges to the test's server; each name is a connection of its own, as another process would have."""
    bridges: list[NatsDiscovery] = []

    def make(name: str = "one", layout: DiscoveryLayout | None = None, **settings: Any) -> NatsDiscovery:
        bridge = NatsDiscovery(NatsSettings(**{"servers": (nats_server.url,), "name": name, **settings}), layout)
        bridge.open()
        bridge.create_streams()
        bridges.append(bridge)
        return bridge

    yield make
    for bridge in bridges:
        bridge.close()


def end_process_of(bridge: NatsDiscovery) -> None:
    """What others see when a process is gone."""
    bridge.leases.stop()


def renew(bridge: NatsDiscovery, source: SourceKey = DESK) -> None:
    """Once more, now."""
    bridge.leases._renew_one(bridge.leases.sources[source])


def renewals_of(bridge: NatsDiscovery) -> dict[tuple[SourceKey, str], int]:
    """The sequence of the last renewal, for each source by part."""
    store = bridge.leases.store
    assert isinstance(store, NatsLeases)
    return store.last_sequences


def stop_renewing(bridge: NatsDiscovery, source: SourceKey = DESK) -> None:
    """As if the machine slept."""
    bridge.leases.sources[source].due += 3600.0


def publish(admin: Admin, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
    """As any client would, acknowledged."""

    async def store() -> None:
        await admin._client.jetstream(timeout=60).publish(subject, payload, headers=headers)

    admin._run(store())


def give_up(admin: Admin, source: SourceKey, part: str) -> None:
    """In place of its last renewal: the server itself calls the source SUSPECT (``warn``) or OFFLINE (``live``) a
    second from now, however long it was to live."""
    publish(admin, DiscoveryLayout().source_subject(source, part), b"", {"Nats-TTL": "1s"})


def advised(admin: Admin, word: str) -> None:
    """Wait until an advisory that says ``word`` is stored: they come after the answer to what they are about."""
    at = 1

    def found() -> bool:
        nonlocal at
        message = admin.api("STREAM.MSG.GET.MAMA_ADVISORIES", {"seq": at, "next_by_subj": ADVISORIES}).get("message")
        if message is None:
            return False
        at = message["seq"] + 1
        return word.encode() in b64decode(message.get("data", ""))

    eventually(found, f"an advisory of {word}")


def premade(admin: Admin, layout: DiscoveryLayout, changes: dict[str, Any]) -> None:
    for config in layout.streams():
        config = {**config, **(changes if config["name"] == layout.events else {})}
        assert "error" not in admin.api(f"STREAM.CREATE.{config['name']}", config)
