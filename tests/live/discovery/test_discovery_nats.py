"""Discovery over a real server: what is in the way, readers that know nothing of us, many of each, servers that go."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.bridge import DiscoveryEventKind
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.discovery import lease_keeper
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.discovery.layout import ADVISORY_BYTES, DiscoveryLayout
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.nats.subjects import PROGRESS_METADATA
from mama_spark.testing.waiting import eventually

from tests.support.discovery_follower import (
    DESK,
    EVENT,
    GAP,
    IMAGE_END,
    OFFLINE,
    READERS,
    RECORD,
    SUSPECT,
    TWIN,
    Follower,
    has,
)
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_discovery import LONG, TTL, Opened, premade, renew, renewals_of
from tests.support.nats.nats_servers import Admin, FetchedMessage

# --- what is in the way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deny", "call", "word"),
    [
        ("$JS.API.STREAM.INFO.MAMA_SOURCES", "open", "MAMA_SOURCES"),
        ("$JS.API.STREAM.CREATE.MAMA_EVENTS", "create", "MAMA_EVENTS"),
        ("$JS.API.DIRECT.GET.MAMA_SOURCES", "image", "MAMA_SOURCES"),
        ("_MAMA_SOURCE_DISCOVERY.source.>", "announce", "_MAMA_SOURCE_DISCOVERY.source.desk.7.warn"),
        ("_MAMA_SOURCE_DISCOVERY.mark", "latest", "_MAMA_SOURCE_DISCOVERY.mark"),
        ("$JS.API.STREAM.PURGE.MAMA_SOURCES", "withdraw", "MAMA_SOURCES"),
    ],
)
def test_a_missing_permission_is_told_by_subject_or_stream(tmp_path: Path, deny: str, call: str, word: str) -> None:
    users = f'authorization {{ users: [{{user: u, password: p, permissions: {{ publish: {{deny: ["{deny}"]}} }} }}] }}'
    with NatsServer(tmp_path / "nats", config=users) as server:
        bridge = NatsDiscovery(NatsSettings((server.url,), user="u", password="p"))
        calls: dict[str, Callable[[], object]] = {
            "open": bridge.open,
            "create": bridge.create_streams,
            "image": bridge.image,
            "announce": lambda: bridge.announce(DESK, b"r", TTL),
            "withdraw": lambda: bridge.withdraw(DESK, b"r"),
            "latest": lambda: bridge.initial_offset("latest"),
        }
        if call != "open":
            bridge.open()
        if call not in ("open", "create"):
            bridge.create_streams()
        with pytest.raises(ConfigError, match=word.replace(".", r"\.")):
            calls[call]()
        bridge.close()
        lease_keeper.clear()


def test_streams_that_were_deleted_a_moment_ago_are_made_again_by_who_asks_or_announces(
    nats_server: NatsServer, opened: Opened
) -> None:
    """Also by a connection that remembers them: a job's worker keeps it, and what was there for the batch before."""
    names = ["MAMA_ADVISORIES", "MAMA_EVENTS", "MAMA_SOURCES"]
    bridge = opened()
    with Admin(nats_server.url) as admin:

        def delete(names: list[str]) -> None:
            for name in names:
                assert admin.api(f"STREAM.DELETE.{name}").get("success")

        delete(names)
        assert [c.kind for c in bridge.image()] == [IMAGE_END]
        assert not admin.api("STREAM.NAMES").get("streams")
        bridge.create_streams()
        assert sorted(admin.api("STREAM.NAMES")["streams"]) == names
        delete(names)
        bridge.announce(DESK, b"r", TTL)
        assert admin.info("MAMA_SOURCES")["state"]["messages"] > 0
        delete(["MAMA_EVENTS"])
        bridge.publish_events(DESK, [b"e"], ["1"])
        assert admin.info("MAMA_EVENTS")["state"]["messages"] > 0


def test_streams_with_other_limits_are_left_as_they_are(nats_server: NatsServer, opened: Opened) -> None:
    with Admin(nats_server.url) as admin:
        premade(admin, DiscoveryLayout(), {"max_msgs": 77, "max_msgs_per_subject": 70})
        opened()
        assert admin.info("MAMA_EVENTS")["config"]["max_msgs"] == 77
        assert admin.info("MAMA_ADVISORIES")["config"]["max_bytes"] == ADVISORY_BYTES


def test_advisories_that_another_stream_keeps_are_told(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("AUDIT", ["$JS.EVENT.ADVISORY.>"], no_ack=True)
    bridge = NatsDiscovery(NatsSettings((nats_server.url,)))
    bridge.open()
    with pytest.raises(ConfigError, match=r"MAMA_ADVISORIES.*ADVISORY"):
        bridge.create_streams()
    bridge.close()
    bridge = NatsDiscovery(NatsSettings((nats_server.url,)), DiscoveryLayout(advisories=None))
    bridge.open()
    assert [c.kind for c in bridge.image()] == [IMAGE_END]
    bridge.close()


@pytest.mark.own_server
def test_nobody_there_is_unavailable(nats_server: NatsServer, opened: Opened) -> None:
    bridge = opened("one")
    start = bridge.initial_offset("latest")
    bridge.settings = replace(bridge.settings, retry_deadline=0.3, connect_timeout=0.3)  # while it is there: at leisure
    api = bridge._require_open()[1].api
    api.timeout = api._attempt_timeout = 0.3
    nats_server.shutdown()
    calls: list[Callable[[], object]] = [bridge.image, lambda: bridge.latest_offset(start)]
    calls += [lambda: bridge.publish_events(DESK, [b"e"], ["e"]), lambda: bridge.announce(DESK, b"r", TTL)]
    for call in calls:
        with pytest.raises(Unavailable):
            call()


# --- readers that know nothing of us ---------------------------------------------------------------------------------


def test_readers_made_with_a_plain_client_are_seen_coming_and_going(nats_server: NatsServer, opened: Opened) -> None:
    reader = opened()
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        follower = Follower(reader, readers=True)
        filters: list[dict[str, Any]] = [
            {"durable_name": "one", "filter_subject": "t.a.*"},
            {"durable_name": "two", "filter_subjects": ["t.b", "t.c.>"]},
            {"durable_name": "all"},
            {"durable_name": "mama-ours", "filter_subject": "t.d"},
            {"durable_name": "progress", "filter_subject": "t.d", "metadata": PROGRESS_METADATA},
            {"name": "short", "filter_subject": "t.e", "inactive_threshold": 1_000_000_000},
        ]
        for config in filters:
            name = config.get("durable_name") or config["name"]
            body = {"stream_name": "T", "config": {"ack_policy": "explicit", **config}}
            assert "error" not in admin.api(f"CONSUMER.CREATE.T.{name}", body)
        follower.until(lambda found: len(found) >= 5)
        came = [(c.kind.value, c.topic) for c in follower.found]
        assert came[:5] == [("subscribed", t) for t in ("t.a.*", "t.b", "t.c.>", "t.>", "t.e")]
        info = json.loads(follower.found[0].info or "")
        assert (info["stream"], info["consumer"], info["client"]["lang"]) == ("T", "one", "python3")
        follower.until(lambda found: any(c.kind is DiscoveryEventKind.UNSUBSCRIBED and c.topic == "t.e" for c in found))
        before = len(follower.found)
        for name in ("progress", "one", "two"):
            assert admin.api(f"CONSUMER.DELETE.T.{name}").get("success")
        follower.until(lambda found: len(found) >= before + 3)
    gone = [(c.kind.value, c.topic) for c in follower.found[before:]]
    assert gone == [("unsubscribed", t) for t in ("t.a.*", "t.b", "t.c.>")]
    assert all(c.origin == "MAMA_ADVISORIES" for c in follower.found)


def test_a_consumer_finds_its_audit_whatever_order_they_are_stored_in(nats_server: NatsServer, opened: Opened) -> None:
    """The server sends the two by two queues: here one comes after the other, with a consumer's last audit missing."""
    start = opened("early").initial_offset("latest")
    with Admin(nats_server.url) as admin:
        make_and_delete(admin, ["t.a", "t.b", "t.c"])
        eventually(lambda: len(advised(admin, "CONSUMER.")) == 6 <= len(advised(admin, "API")), "all is stored")
        ends, calls = advised(admin, "CONSUMER."), advised(admin, "API")
        missing = next(call for call in reversed(calls) if b"consumer_create_response" in call.payload)
        calls.remove(missing)
        admin.api("STREAM.PURGE.MAMA_ADVISORIES")
        for message in (*ends, *calls):
            admin._run(admin._client.publish(message.topic, message.payload))
    follower = Follower(opened("late"), start, readers=True)
    follower.until(lambda found: len([c for c in found if c.kind in READERS]) >= 6)
    told = [(c.kind, c.topic) for c in follower.found if c.kind in READERS]
    assert told == [(kind, topic) for topic in ("t.a", "t.b", None) for kind in READERS]


def make_and_delete(admin: Admin, topics: list[str], name: str = "x") -> None:
    """A stream T, and a consumer of each topic, one after the other."""
    admin.create_stream("T", ["t.>"])
    for i, topic in enumerate(topics):
        consumer = name.format(i)
        body = {"stream_name": "T", "config": {"durable_name": consumer, "filter_subject": topic}}
        assert "error" not in admin.api(f"CONSUMER.CREATE.T.{consumer}", body)
        assert admin.api(f"CONSUMER.DELETE.T.{consumer}").get("success")


def advised(admin: Admin, what: str) -> list[FetchedMessage]:
    """What the advisories of this kind say of the stream T."""
    found = [m for m in admin.messages("MAMA_ADVISORIES") if m.topic.startswith(f"$JS.EVENT.ADVISORY.{what}")]
    return [m for m in found if b'"stream":"T"' in m.payload or b".T.x" in m.payload]


def test_readers_are_told_again_the_same_and_missed_while_nobody_looks(nats_server: NatsServer, opened: Opened) -> None:
    start = opened("early").initial_offset("latest")
    with Admin(nats_server.url) as admin:
        make_and_delete(admin, [f"t.{i}" for i in range(5)], "c{}")
    late = opened("late")
    follower = Follower(late, start, readers=True)
    positions = [follower.at]
    while len(follower.found) < 10:
        follower.step(limit=4)
        positions.append(follower.at)
    assert [c.topic for c in follower.found] == [f"t.{i // 2}" for i in range(10)]
    again = [c for a, b in itertools.pairwise(positions) for block in late.read(a, b) for c in block]
    assert again == follower.found


# --- many ------------------------------------------------------------------------------------------------------------


# --- servers that go -------------------------------------------------------------------------------------------------


@pytest.mark.own_server
def test_a_server_restart_while_announcing_and_reading_costs_nothing(nats_server: NatsServer, opened: Opened) -> None:
    one, reader = opened("one"), opened("reader")
    one.announce(DESK, b"r", LONG)
    follower = Follower(reader, reader.initial_offset("image"))
    follower.step()
    for i in range(3):
        one.publish_events(DESK, [b"%d" % i], [f"{i}"])
        if i < 2:
            nats_server.kill()
            nats_server.start()
    follower.until(has(EVENT, times=3))
    known = renewals_of(one)[DESK, "live"]
    renew(one)
    assert renewals_of(one)[DESK, "live"] > known, "it renews again"
    assert [c.payload for c in follower.found if c.kind is EVENT] == [b"0", b"1", b"2"]
    assert follower.kinds() == [RECORD, EVENT, EVENT, EVENT]
    assert not [c for c in follower.found if c.kind is GAP]


@pytest.mark.thorough
def test_a_leader_that_goes_while_announcing_and_reading_costs_nothing(tmp_path: Path) -> None:
    layout, made = DiscoveryLayout(), (None, 10058)
    with Cluster(tmp_path / "cluster") as cluster, Admin(cluster.url) as admin:

        def create(config: dict[str, Any]) -> int | None:
            error: dict[str, int] = admin.api(f"STREAM.CREATE.{config['name']}", config).get("error", {})
            return error.get("err_code")

        eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
        for config in ({**one, "num_replicas": 3} for one in layout.streams()):
            eventually(lambda c=config: create(c) in made, "three peers are known")  # type: ignore[misc]
        settings = NatsSettings(tuple(cluster.url.split(",")), retry_deadline=60.0, connect_timeout=2.0)
        one, reader = NatsDiscovery(settings), NatsDiscovery(replace(settings, name="reader"))
        one.open()
        reader.open()
        one.announce(DESK, b"r", 60.0)
        follower = Follower(reader, reader.initial_offset("image"))
        follower.step()
        admin.create_stream("T", ["t.>"])
        seen = Follower(reader, readers=True)
        body = {"stream_name": "T", "config": {"durable_name": "c", "filter_subject": "t.a"}}
        assert "error" not in admin.api("CONSUMER.CREATE.T.c", body)
        seen.until(lambda found: [c.topic for c in found if c.kind in READERS] == ["t.a"])
        for i in range(3):
            one.publish_events(DESK, [b"%d" % (10 * i + k) for k in range(10)], [f"{10 * i + k}" for k in range(10)])
            follower.step()
            if i == 0:
                assert admin.api("STREAM.LEADER.STEPDOWN.MAMA_EVENTS").get("success")
            elif i == 1:
                leader = eventually(lambda: admin.info("MAMA_EVENTS")["cluster"].get("leader"), "a leader")
                cluster.node(leader).kill()
        one.announce(TWIN, b"twin", 60.0)
        follower.until(has(RECORD, TWIN))
        follower.until(has(EVENT, times=30))
        events = [int(c.payload or b"") for c in follower.found if c.kind is EVENT]
        assert sorted(events) == list(range(30))
        assert follower.kinds().count(RECORD) == 1
        assert not {SUSPECT, OFFLINE, GAP} & {c.kind for c in follower.found}
        assert {c.source for c in reader.image()} == {DESK, TWIN, None}
        one.close()
        reader.close()
        lease_keeper.clear()
