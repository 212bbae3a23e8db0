"""Announcing over a real server: expiry, several processes, ends in order and without a word."""

from __future__ import annotations

import logging
import time

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.discovery.lease_keeper import Announced
from mama_spark.nats.discovery.layout import DiscoveryLayout
from mama_spark.nats.discovery.lease import NatsLeases
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.discovery_follower import DESK, IMAGE_END, OFFLINE, RECORD, SUSPECT, TWIN, Follower, has
from tests.support.nats.nats_discovery import (
    LONG,
    TTL,
    Opened,
    end_process_of,
    give_up,
    publish,
    renew,
    stop_renewing,
)
from tests.support.nats.nats_servers import Admin


def test_a_source_that_finds_itself_given_up_is_announced_again_by_one_and_says_why(
    nats_server: NatsServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    reader, one, two = opened("reader"), opened("one"), opened("two")
    follower = Follower(reader)
    for bridge in (one, two):
        bridge.announce(DESK, b"r", LONG)
        stop_renewing(bridge)
    with Admin(nats_server.url) as admin:
        give_up(admin, DESK, "warn")
    follower.until(has(SUSPECT))
    with caplog.at_level(logging.WARNING, "mama_spark.discovery"):
        for bridge in (one, two):
            renew(bridge)
    follower.until(has(RECORD, times=2))
    assert follower.kinds() == [RECORD, SUSPECT, RECORD]
    for bridge in (one, two, one):
        renew(bridge)
    one.announce(TWIN, b"mark", LONG)
    follower.until(has(RECORD, TWIN))
    assert follower.kinds() == [RECORD, SUSPECT, RECORD]
    assert [r.message for r in caplog.records if "called SUSPECT" in r.message and "sourceTtl" in r.message]
    assert [(c.kind, c.source) for c in reader.image()][:-1] == [(RECORD, DESK), (RECORD, TWIN)]


@pytest.mark.parametrize("done", ["nothing", "warn", "live"])
def test_a_process_that_ends_while_it_comes_back_leaves_nothing_undone(
    nats_server: NatsServer, opened: Opened, done: str
) -> None:
    reader, one, two = opened("reader"), opened("one"), opened("two")
    follower = Follower(reader)
    for bridge in (one, two):
        bridge.announce(DESK, b"r", LONG)
        stop_renewing(bridge)
    with Admin(nats_server.url) as admin:
        for part in ("warn", "live"):
            give_up(admin, DESK, part)
    follower.until(lambda found: has(SUSPECT)(found) and has(OFFLINE)(found))
    store = one.leases.store
    assert isinstance(store, NatsLeases)
    for part in {"nothing": (), "warn": ("warn",), "live": ("warn", "live")}[done]:
        store._claim_renewal(Announced(DESK, b"r", LONG), part)
    renew(two)
    follower.until(has(RECORD, times=2))
    assert [c.kind for c in reader.image()] == [RECORD, IMAGE_END]


def test_records_are_kept_from_vanishing_without_being_told_and_dead_ones_vanish(
    nats_server: NatsServer, opened: Opened
) -> None:
    layout = DiscoveryLayout(kept=4.0)
    one = opened("one", layout)
    follower = Follower(one)
    one.announce(DESK, b"r", 3.0)
    other = opened("two", layout)
    other.announce(TWIN, b"r", TTL)
    end_process_of(other)
    with Admin(nats_server.url) as admin:

        def twin_is_forgotten() -> bool:
            follower.step()
            return "error" in admin.api(
                "STREAM.MSG.GET.MAMA_SOURCES", {"last_by_subj": layout.source_subject(TWIN, "rec")}
            ) or ([c.source for c in one.image()][:-1] == [DESK])

        eventually(twin_is_forgotten, "the dead one is forgotten")
        kept = admin.api("STREAM.MSG.GET.MAMA_SOURCES", {"last_by_subj": layout.source_subject(DESK, "rec")})
        assert kept["message"]["seq"] > 3, "written again"
    follower.lives()
    assert DESK in [c.source for c in one.image()]
    assert TWIN not in [c.source for c in one.image()]
    assert follower.kinds(TWIN) == [RECORD, SUSPECT, OFFLINE]


def test_whoever_has_a_nats_client_can_announce(nats_server: NatsServer, opened: Opened) -> None:
    reader = opened()
    follower = Follower(reader)
    topic = reader.layout.topic
    with Admin(nats_server.url) as admin:
        publish(admin, f"{topic}.source.cli.-.rec", b"by hand")
        publish(admin, f"{topic}.source.cli2.5.rec", b"dies", {"Mama-Source-Ttl": "1"})
        publish(admin, f"{topic}.source.cli2.5.live", b"", {"Nats-TTL": "1s"})
        follower.until(has(OFFLINE, SourceKey("cli2", 5)))
    assert [(c.source, c.kind) for c in reader.image()][:-1] == [
        (SourceKey("cli", None), RECORD),
        (SourceKey("cli2", 5), RECORD),
        (SourceKey("cli2", 5), OFFLINE),
    ]


def test_times_are_those_of_the_server(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 30 * 86400)  # this machine's clock is a month behind
    one = opened()
    follower = Follower(one)
    one.announce(DESK, b"r", TTL)
    one.publish_events(DESK, [b"e"], ["e"])
    end_process_of(one)
    follower.until(has(OFFLINE))
    assert all(abs(c.at / 1e6 - now) < 3600 for c in [*follower.found, *one.image()])
    one.announce(DESK, b"r", LONG)
    assert [c.kind for c in one.image()] == [RECORD, IMAGE_END]
