"""What a reader of discovery is told of what was lost, and that nothing is lost while others write."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mama_spark.contracts.bridge import DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.discovery import lease_keeper
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.discovery.layout import DiscoveryLayout
from mama_spark.nats.jetstream import client
from mama_spark.nats.jetstream.client import JetStream
from mama_spark.nats.protocol.direct_get import StoredMessage
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.testing.waiting import eventually

from tests.support.discovery_follower import DESK, EVENT, GAP, IMAGE_END, OFFLINE, READERS, RECORD, TWIN, Follower, has
from tests.support.nats.nats_discovery import LONG, TTL, Opened, advised, end_process_of, publish, renew
from tests.support.nats.nats_servers import Admin


def test_renewals_that_vanish_are_no_gap(nats_server: NatsServer, opened: Opened) -> None:
    one, reader = opened("one"), opened("two")
    one.announce(DESK, b"r", LONG)
    start = reader.initial_offset("image")
    follower = Follower(reader, start)
    follower.step()
    warn = DiscoveryLayout().source_subject(DESK, "warn")
    with Admin(nats_server.url) as admin:
        behind = {"seq": admin.info("MAMA_EVENTS")["state"]["last_seq"] + 1, "next_by_subj": warn}

        def first() -> int:
            """Number of the oldest renewal that is still there."""
            assert reader.latest_offset(follower.at) == follower.at, "renewals move nothing"
            return int(admin.api("STREAM.MSG.GET.MAMA_EVENTS", behind).get("message", {}).get("seq", 0))

        publish(admin, warn, b"", {"Nats-TTL": "2s"})
        renew(one)
        vanishing = eventually(first, "it is told")
        eventually(lambda: first() > vanishing, "it has vanished")
    again = Follower(opened("three"), follower.at)
    one.publish_events(DESK, [b"e"], ["e"])
    again.until(has(EVENT))
    assert [c.kind for c in again.found] == [EVENT]
    earliest = Follower(reader, reader.initial_offset("earliest"))
    earliest.until(has(EVENT))
    assert [c.kind for c in earliest.found] == [RECORD, EVENT]


ONE = [pytest.param(name, marks=pytest.mark.thorough) for name in ("MAMA_EVENTS", "MAMA_SOURCES")]


@pytest.mark.parametrize("stream", [*ONE, "both"])
def test_a_stream_deleted_and_made_again_is_a_gap_and_a_fresh_image(
    nats_server: NatsServer, opened: Opened, stream: str
) -> None:
    one, reader = opened("one"), opened("reader", retry_deadline=60.0, connect_timeout=2.0)
    one.announce(DESK, b"r", TTL)
    follower = Follower(reader, reader.initial_offset("image"))
    follower.step()
    one.publish_events(DESK, [b"e"], ["e"])
    follower.until(has(EVENT))
    with Admin(nats_server.url) as admin:
        for name in ["MAMA_EVENTS", "MAMA_SOURCES"] if stream == "both" else [stream]:
            assert admin.api(f"STREAM.DELETE.{name}").get("success")
    again = opened("again")  # whoever comes first makes what is missing
    again.announce(TWIN, b"twin", TTL)
    reader._require_open()[1].watch._refreshed = float("-inf")  # else it looks again within half a minute
    before = len(follower.found)
    follower.until(lambda found: IMAGE_END in [c.kind for c in found[before:]])
    follower.until(lambda found: {DESK, TWIN} <= {c.source for c in found[before:]})
    new = follower.found[before:]
    kinds = [c.kind for c in new]
    assert kinds.index(GAP) < kinds.index(IMAGE_END)
    assert new[kinds.index(GAP)].origin == ("MAMA_EVENTS" if stream == "both" else stream)
    again.announce(TWIN, b"more", TTL)
    follower.until(lambda found: any(c.payload == b"more" for c in found))
    end_process_of(again)
    follower.until(has(OFFLINE, TWIN))


def test_a_planned_batch_of_a_stream_that_is_gone_is_a_gap(nats_server: NatsServer, opened: Opened) -> None:
    reader = opened("reader")
    start = reader.initial_offset("latest")
    reader.publish_events(DESK, [b"1", b"2"], ["1", "2"])
    end = reader.latest_offset(start)
    with Admin(nats_server.url) as admin:
        assert admin.api("STREAM.DELETE.MAMA_EVENTS").get("success")
    again = opened("again")
    again.publish_events(DESK, [b"x"] * 9, [f"x{i}" for i in range(9)])
    found = [c for block in again.read(start, end) for c in block if c.kind not in READERS]
    assert [(c.kind, c.gap) for c in found] == [(GAP, (start["events"] + 1, end["events"]))]


def test_sources_made_again_by_hand_below_what_was_sourced_are_refused_by_name(
    nats_server: NatsServer, opened: Opened
) -> None:
    one = opened("one")
    one.announce(DESK, b"r", TTL)
    one.close()
    lease_keeper.clear()
    with Admin(nats_server.url) as admin:
        assert admin.api("STREAM.DELETE.MAMA_SOURCES").get("success")
        assert "error" not in admin.api("STREAM.CREATE.MAMA_SOURCES", DiscoveryLayout().streams()[0])
        with pytest.raises(ConfigError, match="first_seq="):
            opened("two")


def test_those_who_come_first_at_the_same_time_make_the_streams_together(nats_server: NatsServer) -> None:
    bridges = [NatsDiscovery(NatsSettings((nats_server.url,), name=f"{i}")) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda bridge: bridge.open(), bridges))
    for bridge in bridges:
        assert [c.kind for c in bridge.image()] == [IMAGE_END]
        bridge.close()


def test_opening_again_asks_nothing_and_leaves_no_advisories(nats_server: NatsServer, opened: Opened) -> None:
    for name in ("first", "one"):
        opened(name).close()
    with Admin(nats_server.url) as admin:

        def asked(mark: str) -> int:
            """How often the stream of sources was asked for, all of it."""
            admin.api(f"STREAM.INFO.{mark}")
            advised(admin, f"STREAM.INFO.{mark}")
            told = admin.messages("MAMA_ADVISORIES")
            return sum(b"STREAM.INFO.MAMA_SOURCES" in m.payload for m in told)

        before = asked("before")
        for _ in range(5):
            bridge = NatsDiscovery(NatsSettings((nats_server.url,), name="one"))
            bridge.open()
            bridge.close()
        assert asked("after") == before > 0


def test_each_query_has_an_image_of_its_own_and_does_not_see_those_of_others(
    opened: Opened,
) -> None:
    one, two = opened("one"), opened("two")
    one.announce(DESK, b"r", LONG)
    begin = one.initial_offset("image")
    first = one.latest_offset(begin)
    one.announce(TWIN, b"r", LONG)
    second = two.latest_offset(begin)
    assert [c.source for block in two.read(begin, first) for c in block] == [DESK, None]
    assert [c.source for block in one.read(begin, second) for c in block] == [DESK, TWIN, None]
    follower = Follower(one, first)
    one.publish_events(DESK, [b"e"], ["e"])
    follower.until(has(EVENT))
    assert [(c.kind, c.source) for c in follower.found] == [(RECORD, TWIN), (EVENT, DESK)]
    third = one.latest_offset(begin)
    assert third["image"] != first["image"], "a query that begins anew has an image of that moment"


def test_what_changes_while_a_long_image_is_read_is_in_it_or_told_after_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record and the renewals of a source that speaks move to the end of the stream, behind what the end was at
    first; a new one comes behind all that was read."""
    reader, one = opened("reader"), opened("one")
    keys = [SourceKey("s", i) for i in range(6)]
    for key in keys:
        one.announce(key, b"r", 60.0)
    store, pages, page = one.leases.store, itertools.count(1), JetStream.get_many

    def speaking(self: JetStream, stream: str, **body: Any) -> tuple[list[StoredMessage], int]:
        messages, pending = page(self, stream, **body)
        number = next(pages)
        if number == 2:
            store.announce(lease_keeper.Announced(keys[-1], b"changed", 60.0))
        elif number > 2 and not pending:
            monkeypatch.undo()
            store.announce(lease_keeper.Announced(TWIN, b"new", 60.0))
        return messages, pending

    monkeypatch.setattr(client, "_PAGE", 4)
    monkeypatch.setattr(JetStream, "get_many", speaking)
    follower = Follower(reader, reader.initial_offset("image"))
    follower.until(has(RECORD, TWIN))
    kinds = [c.kind for c in follower.found]
    image = {c.source: c.payload for c in follower.found[: kinds.index(IMAGE_END)] if c.kind is RECORD}
    assert image == {**dict.fromkeys(keys[:-1], b"r"), keys[-1]: b"changed"}
    assert [c.source for c in follower.found[kinds.index(IMAGE_END) + 1 :]] == [TWIN]


def test_advisories_that_were_lost_are_a_gap(nats_server: NatsServer, opened: Opened) -> None:
    reader = opened()
    follower = Follower(reader, readers=True)
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        for name in ("lost", "kept"):
            body = {"stream_name": "T", "config": {"durable_name": name, "filter_subject": f"t.{name}"}}
            assert "error" not in admin.api(f"CONSUMER.CREATE.T.{name}", body)
            if name == "lost":
                advised(admin, "CONSUMER.CREATE.T.lost")
                first = admin.info("MAMA_ADVISORIES")["state"]["last_seq"] + 1
                admin.api("STREAM.PURGE.MAMA_ADVISORIES", {"seq": first})
        follower.until(lambda found: any(c.topic == "t.kept" for c in found))
    gap, *rest = follower.found
    assert (gap.kind, gap.origin) == (GAP, "MAMA_ADVISORIES")
    assert gap.gap is not None
    assert gap.gap[1] >= first - 1
    rest = [c for c in rest if c.kind is not GAP]  # advisories come when they like, so the loss may have two parts
    assert [c.topic for c in rest] == ["t.kept"]


@pytest.mark.parametrize("begin", ["image", "latest", "earliest"])
def test_a_stream_of_advisories_that_was_emptied_before_the_beginning_is_no_gap(
    nats_server: NatsServer, opened: Opened, begin: str
) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("OWN", ["$JS.EVENT.ADVISORY.CONSUMER.>"], allow_direct=True, no_ack=True)
        reader = opened(layout=DiscoveryLayout(advisories="OWN"))
        admin.create_stream("T", ["t.>"])
        body = {"stream_name": "T", "config": {"durable_name": "c", "filter_subject": "t.a"}}
        assert "error" not in admin.api("CONSUMER.CREATE.T.c", body)
        created = {"last_by_subj": "$JS.EVENT.ADVISORY.CONSUMER.CREATED.T.c"}
        eventually(lambda: "message" in admin.api("STREAM.MSG.GET.OWN", created), "the advisory is stored")
        admin.api("STREAM.PURGE.OWN")
        follower = Follower(reader, reader.initial_offset(begin), readers=True)
        follower.step()
        assert admin.api("CONSUMER.DELETE.T.c").get("success")
        follower.until(lambda found: any(c.kind is DiscoveryEventKind.UNSUBSCRIBED for c in found))
    assert not [c for c in follower.found if c.kind is GAP]


def test_an_image_that_is_not_kept_any_more_is_a_gap(nats_server: NatsServer, opened: Opened) -> None:
    reader = opened()
    reader.announce(DESK, b"r", LONG)
    begin = reader.initial_offset("image")
    end = reader.latest_offset(begin)
    with Admin(nats_server.url) as admin:
        admin.api("STREAM.PURGE.MAMA_EVENTS")
    assert [c.kind for block in reader.read(begin, end) for c in block] == [GAP]
    later = Follower(reader, end)
    reader.publish_events(DESK, [b"e"], ["e"])
    later.until(has(EVENT))


def test_a_consumer_whose_making_is_not_kept_is_told_without_its_topics(
    nats_server: NatsServer, opened: Opened
) -> None:
    reader = opened()
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        body = {"stream_name": "T", "config": {"durable_name": "old", "filter_subject": "t.a"}}
        assert "error" not in admin.api("CONSUMER.CREATE.T.old", body)
        advised(admin, "CONSUMER.CREATE.T.old")
        admin.api("STREAM.PURGE.MAMA_ADVISORIES")
        follower = Follower(reader, readers=True)
        assert admin.api("CONSUMER.DELETE.T.old").get("success")
        follower.until(lambda found: any(c.kind is DiscoveryEventKind.UNSUBSCRIBED for c in found))
    (gone,) = [c for c in follower.found if c.kind is DiscoveryEventKind.UNSUBSCRIBED]
    assert gone.topic is None
    info = json.loads(gone.info or "")
    assert (info["stream"], info["consumer"]) == ("T", "old")
    assert "not known" in info["note"]
