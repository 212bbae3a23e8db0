"""Streams of another JetStream domain (a leaf node's), and of another account by an API prefix: written, read, and
announced through a server or an account that keeps streams of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from mama_spark.contracts.bridge import DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.record_log import MatchRange
from mama_spark.discovery import lease_keeper
from mama_spark.nats import AttachedBridge, NatsBridge, NatsSettings
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.preflight import check_server
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver
from tests.support.nats.buckets import write
from tests.support.nats.nats_servers import Admin

SOURCE = SourceKey("desk", 7)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, NatsServer]]:
    """A hub and a leaf node of it, each with a domain of its own."""
    folder = tmp_path_factory.mktemp("leaf")
    listen = 'leafnodes { listen: "127.0.0.1:-1" }'
    with NatsServer(folder / "hub", name="hub", jetstream="domain: hub", config=listen) as hub:
        remote = f'leafnodes {{ remotes = [ {{ url: "nats://127.0.0.1:{hub.ask("varz")["leaf"]["port"]}" }} ] }}'
        with NatsServer(folder / "leaf", name="leaf", jetstream="domain: leaf", config=remote) as leaf:
            with Admin(hub.url) as admin:
                eventually(lambda: _answers(admin, "leaf"), "the hub knows who answers for the leaf node")
            yield hub, leaf


def _answers(admin: Admin, domain: str) -> bool:
    with contextlib.suppress(nats.errors.NoRespondersError):
        return bool(admin.publish(f"$JS.{domain}.API.INFO"))
    return False


def payloads_of(settings: NatsSettings, stream: str, **topics: Any) -> list[bytes]:
    with NatsLogs(settings) as logs:
        log = logs.log(stream)
        found = log.read(0, log.bounds().last, **topics)
        return [payload for records in found for payload in records.payloads.to_pylist()]


@pytest.mark.parametrize("ids", [True, False])
def test_rows_are_stored_and_read_in_the_named_domain(servers: tuple[NatsServer, NatsServer], ids: bool) -> None:
    """Message by message with ids, by fast ingest without."""
    hub, leaf = servers
    name, topic = f"S{ids:d}", f"s.{ids:d}"
    with Admin(leaf.url) as admin, Driver(hub.url, js_domain="leaf", dedup=ids) as driver:
        admin.create_stream(name, [topic], allow_batched=True)
        driver.put([topic], 500)
        driver.drain()
        assert driver.events() == {"acked": 500}, driver.reasons[:3]
        assert driver.bridge.mode == ("message" if ids else "batch")
        driver.conserved(admin, name)
    settings = NatsSettings((hub.url,), js_domain="leaf")
    payloads = payloads_of(settings, name)
    assert sorted(payloads) == sorted(o.payload for o in driver.outcomes)
    assert payloads_of(settings, name, topics=[topic]) == payloads
    with NatsLogs(settings) as logs:
        assert logs.names([topic]) == [name]
        assert logs.log(name).match_range(0, 10**9, [topic], 500) == MatchRange(10**9, 500)
    found = check_server(settings, [topic])
    assert any(text.startswith(f"stream: {name} takes {topic}") for _, text in found), found


def test_an_acknowledgement_of_another_domain_does_not_count(servers: tuple[NatsServer, NatsServer]) -> None:
    """A stream of the hub takes the same topic, and is nearer."""
    hub, leaf = servers
    with Admin(hub.url) as near, Admin(leaf.url) as far:
        near.create_stream("NEAR", ["t.>"])
        with Driver(hub.url) as driver:
            driver.put(["t.a"], 5)  # sequences differ from here on
            driver.drain()
        far.create_stream("FAR", ["t.>"])
        with Driver(hub.url, js_domain="leaf") as driver:
            driver.put(["t.a"], 200)
            driver.drain()
            assert driver.events() == {"acked": 200}, driver.reasons[:3]
            driver.conserved(far, "FAR")  # with the sequences of that stream
            assert driver.bridge.warnings == [
                "stream 'NEAR' of the domain 'hub' takes these topics, too: its acknowledgements do not count, because "
                "jsDomain=leaf"
            ]


def test_sources_are_announced_in_the_named_domain(servers: tuple[NatsServer, NatsServer]) -> None:
    hub, leaf = servers
    bridge = NatsDiscovery(NatsSettings((hub.url,), js_domain="leaf"))
    bridge.open()
    try:
        bridge.announce(SOURCE, b"record", 60.0)
        start = bridge.initial_offset("image")
        events = [e for page in bridge.read(start, bridge.latest_offset(start)) for e in page]
        assert (events[0].source, events[-1].kind) == (SOURCE, DiscoveryEventKind.IMAGE_END)
        bridge.withdraw(SOURCE, b"record")
    finally:
        bridge.close()
        lease_keeper.clear()
    with Admin(hub.url) as near, Admin(leaf.url) as far:
        assert "error" in near.api("STREAM.INFO.MAMA_SOURCES")
        far.info("MAMA_SOURCES")


def test_a_domain_that_is_not_there_is_told(servers: tuple[NatsServer, NatsServer]) -> None:
    bridge = NatsBridge(NatsSettings((servers[0].url,), js_domain="lief"))
    with pytest.raises(Unavailable, match=r"nobody answers to \$JS\.lief\.API\.INFO: .*option jsDomain"):
        bridge.open()


def test_a_context_of_the_caller_keeps_its_domain(servers: tuple[NatsServer, NatsServer]) -> None:
    """Also when the bridge asks why nothing is acknowledged."""

    async def last_sequence(**where: str) -> int:
        client = await nats.connect(servers[0].url)
        try:
            bridge = AttachedBridge.attach(client.jetstream(**where), client=client)
            return await asyncio.to_thread(bridge._last_sequence, "KEPT")
        finally:
            await client.close()

    with Admin(servers[1].url) as far:
        far.create_stream("KEPT", ["kept.>"])
        far.publish("kept.a", b"")
    assert asyncio.run(last_sequence(domain="leaf")) == 1
    with pytest.raises(ConfigError, match="stream not found"):
        asyncio.run(last_sequence())


#: Account A keeps the streams and lets B write and read them by a prefix.
ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [ { user: a, password: p } ], exports: [
      { service: "$JS.API.>", response_type: stream }, { service: "s.>", response_type: stream } ] }
  B { jetstream: enabled, users: [ { user: b, password: p } ], imports: [
      { service: { account: A, subject: "$JS.API.>" }, to: "JS.a.>" },
      { service: { account: A, subject: "s.>" } } ] }
}
"""


def test_the_streams_of_another_account_are_written_and_read_by_its_prefix(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config=ACCOUNTS) as server:
        url = server.url.replace("//", "//b:p@")
        with Admin(server.url, user="a", password="p") as admin, Driver(url, js_api_prefix="JS.a") as driver:
            admin.create_stream("S", ["s.>"], allow_batched=True)
            driver.put(["s.a"], 500)
            driver.drain()
            assert driver.events() == {"acked": 500}, driver.reasons[:3]
            driver.conserved(admin)
        settings = NatsSettings((url,), js_api_prefix="JS.a")
        assert sorted(payloads_of(settings, "S")) == sorted(o.payload for o in driver.outcomes)


@pytest.mark.parametrize(
    ("bucket", "options"), [("M", {}), ("O", {"jsDomain": "leaf"})], ids=["mirror of the other domain", "domain"]
)
def test_a_bucket_of_the_other_domain_is_written(
    servers: tuple[NatsServer, NatsServer], bucket: str, options: dict[str, Any]
) -> None:
    hub, leaf = servers
    with Admin(leaf.url) as far, Admin(hub.url) as near:
        config = {"max_msgs_per_subject": 5, "allow_direct": True}
        far.create_stream("KV_O", ["$KV.O.>"], **config)
        mirror = {"name": "KV_O", "external": {"api": "$JS.leaf.API"}}
        near.create_stream("KV_M", [], mirror=mirror, mirror_direct=True, **config)
        rows: list[dict[str, Any]] = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2", "expectedRevision": 0}]
        report = write(hub.url, rows, bucket=bucket, **options)
        assert (report.counts.acked, report.counts.row_errors, report.fatal) == (1, 1, None)
        assert [(m.topic, m.payload) for m in far.messages("KV_O")] == [("$KV.O.a", b"1")]
        assert "another domain" in (write(hub.url, rows, bucket=bucket, exactlyOnce="true", **options).fatal or "")
        for admin, name in ((near, "KV_M"), (far, "KV_O")):
            admin.api(f"STREAM.DELETE.{name}")
