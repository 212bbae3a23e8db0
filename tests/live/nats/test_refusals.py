"""What the server refuses, and what it would drop in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import BadTopic, ConfigError, Rejected
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_servers import Admin

LOGIN: dict[str, Any] = {"user": "a", "password": "p"}


@contextmanager
def opened(url: str, **options: Any) -> Iterator[NatsBridge]:
    with closing(NatsBridge(NatsSettings((url,), **options))) as bridge:
        bridge.open()
        yield bridge


REQUESTS = ["$JS.API.STREAM.DELETE.S", "$JS.hub.API.STREAM.PURGE.S", "$SYS.REQ.USER.INFO"]


@pytest.mark.parametrize("mode", ["message", "batch", "none"])
def test_a_topic_that_is_a_request_to_the_server_is_no_request(
    nats_server: NatsServer, admin: Admin, mode: str
) -> None:
    """Neither by the row, nor by the question of which stream takes it."""
    admin.create_stream("S", ["s.>"], allow_batched=True)
    admin.publish("s.a", b"stays")
    with opened(nats_server.url, ack_mode=mode, dedup=False) as bridge:
        rejected = bridge.prepare(MessageBatch.of([*REQUESTS, "s.b"], [b""] * 4)).rejected
    assert [(row, type(error)) for row, error in rejected] == [(row, BadTopic) for row in range(3)]
    assert [message.payload for message in admin.messages("S")] == [b"stays"]


REFUSED = (0, 1, 1_200, 1_201, 1_300, 2_999)


@pytest.mark.parametrize(
    ("n", "refused", "order"),
    [(3_000, REFUSED, {"dedup": False}), (300, range(300), {"dedup": False}), (3_000, REFUSED, {"ordered": True})],
    ids=["unordered", "all", "ordered"],
)
def test_of_fast_batches_exactly_those_rows_fail_that_the_server_refuses(
    nats_server: NatsServer, admin: Admin, n: int, refused: Sequence[int], order: dict[str, Any]
) -> None:
    """At the beginning of a batch, in it, one after the other, and at the beginning of later ones."""
    limits = {"max_msgs_per_subject": 1, "discard_new_per_subject": True}
    admin.create_stream("S", ["s.>"], discard="new", allow_batched=True, **limits)
    for row in refused:
        admin.publish(f"s.{row}", b"")
    with Driver(nats_server.url, wait_timeout=60.0, ack_mode="batch", attempts=1, **order) as driver:
        driver.put([f"s.{row}" for row in range(n)], n)
        driver.drain()
        assert sorted(int(o.payload[:8]) for o in driver.outcomes if o.event != "acked") == list(refused)
        assert all("subject exceeded" in reason for reason in driver.reasons), driver.reasons[:3]
        if refused is not REFUSED:
            assert driver.counters.sends < 2 * n, "behind the first refusal each message is sent alone, once more"
        if "ordered" in order:
            driver.in_order(admin)


def test_a_stream_that_was_missing_is_found_once_it_is_made(nats_server: NatsServer, admin: Admin) -> None:
    """Also by the next task of the same process, which has the same connection."""

    def rejected(*topics: str) -> list[str]:
        with opened(nats_server.url) as bridge:
            found = bridge.prepare(MessageBatch.of([*topics], [b""] * len(topics))).rejected
        return [topics[row] for row, _ in found]

    many = [f"m.{i}" for i in range(20)]  # more than are asked for one by one
    admin.create_stream("S", ["s.>"])
    assert rejected("s.a", "late.a") == ["late.a"]
    admin.create_stream("LATE", ["late.>"])
    assert rejected("s.a", "late.a") == []
    assert rejected("s.a", *many) == many
    admin.create_stream("MANY", ["m.>"])
    assert rejected("s.a", *many) == []


def test_what_overruns_a_server_is_not_lost(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "n", jetstream="max_buffered_msgs: 50") as server, Admin(server.url) as admin:
        admin.create_stream("S", ["s.>"])
        with Driver(server.url, window=512, deadline=110.0) as driver:
            for _ in range(3):
                driver.put(["s.a"], 700)
            driver.drain()
            assert driver.events() == {"acked": 2_100}, driver.reasons[:3]
            driver.conserved(admin)
        fresh_message_gets_through(server.url, "s.new")


def test_rows_wait_until_an_account_whose_limits_are_reached_has_room(tmp_path: Path) -> None:
    limits = "accounts { A: { jetstream: {max_mem: 100000}, users: [ {user: a, password: p} ] } }"
    with NatsServer(tmp_path / "n", config=limits) as server, Admin(server.url, **LOGIN) as admin:
        admin.create_stream("S", ["s.>"], storage="memory")
        with Driver(server.url, deadline=110.0, ack_mode="message", **LOGIN) as driver:
            driver.put(["s.a"], 15, size=10_000)
            eventually(lambda: driver.counters.sends > 15 or driver.reasons, "those that do not fit are sent again")
            admin.api("STREAM.PURGE.S")
            driver.drain()
            assert driver.events() == {"acked": 15}, driver.reasons[:1]


@pytest.mark.parametrize("way", [{}, {"ack_mode": "batch"}, {"ack_mode": "batch", "ordered": True}], ids=str)
def test_a_denied_subject_fails_its_rows_at_once_and_no_others(tmp_path: Path, way: dict[str, Any]) -> None:
    users = 'authorization { users = [ {user: a, password: p, permissions: {publish: {deny: "s.Secret"}}} ] }'
    with NatsServer(tmp_path / "n", config=users) as server, Admin(server.url, **LOGIN) as admin:
        admin.create_stream("S", ["s.>"], allow_batched=True)
        with Driver(server.url, stream="S", wait_timeout=300.0, deadline=300.0, **way, **LOGIN) as driver:
            driver.put(["s.Secret", "s.open"], 200)
            eventually(lambda: len(driver.outcomes) == 200, "the refusal is told, not waited for")
            assert driver.events() == {"acked": 100, "completed_exceptionally": 100}
            assert "NOT_ENTITLED" in driver.reasons[0]
            driver.conserved(admin)


def test_a_server_without_jetstream_is_refused_at_open(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "n", jetstream=None) as without:
        for kind in (NatsBridge, NatsLogs, NatsDiscovery):
            bridge = kind(NatsSettings((without.url,)))
            with pytest.raises(ConfigError, match="JetStream is not enabled"), closing(bridge):
                bridge.open()


def test_topics_without_a_stream_are_bad_rows_and_only_all_of_them_or_no_stream_of_that_name_an_error(
    nats_server: NatsServer, admin: Admin
) -> None:
    admin.create_stream("S", ["s.>"])
    admin.create_stream("T", ["t.>"])
    for stream, rejected in (None, [1]), ("S", [1, 2]):
        with opened(nats_server.url, stream=stream) as bridge:
            found = bridge.prepare(MessageBatch.of(["s.a", "nowhere.b", "t.c"], [b""] * 3)).rejected
            assert [(row, type(error)) for row, error in found] == [(row, Rejected) for row in rejected]
    with opened(nats_server.url) as bridge, pytest.raises(ConfigError, match=r"nowhere\.b"):
        bridge.prepare(MessageBatch.of(["nowhere.b"], [b""]))
    with (
        pytest.raises(ConfigError, match="no stream 'NONE'; existing streams: S, T"),
        opened(nats_server.url, stream="NONE"),
    ):
        pass


@pytest.mark.own_server
def test_ten_thousand_topics_of_one_stream_cost_a_few_questions(nats_server: NatsServer, admin: Admin) -> None:
    admin.create_stream("S", ["s.>"])
    topics = [f"s.{i}" for i in range(10_000)] + [f"nowhere.{i}" for i in range(100)]
    with opened(nats_server.url) as bridge:
        before = int(nats_server.ask("varz")["in_msgs"])
        assert len(bridge.prepare(MessageBatch.of(topics, [b""] * len(topics))).rejected) == 100
        asked = int(nats_server.ask("varz")["in_msgs"]) - before
    assert asked < 20 + 100, "and one for each topic that no stream has a subject for"


@pytest.mark.own_server
def test_late_acknowledgements_of_an_earlier_lease_are_not_taken_for_new_ones(
    nats_server: NatsServer, admin: Admin
) -> None:
    admin.create_stream("S", ["s.>"])
    with opened(nats_server.url) as first:
        nats_server.pause()
        assert first.send(MessageBatch.of(["s.old"], [b"old"], None, ["old"]), 0) == 1
    with opened(nats_server.url) as second:  # the same connection, warm: nothing is asked
        nats_server.resume()
        assert second.send(MessageBatch.of(["s.new"], [b"new"], None, ["new"]), 0) == 1
        acks = eventually(lambda: second.poll(1.0).acks, "the answer")
    by_sequence = {m.sequence: m.payload for m in admin.messages("S")}
    assert [by_sequence[int(s)] for a in acks for s in a.sequences] == [b"new"]


def test_what_is_questionable_reaches_the_log_once_a_connection(
    nats_server: NatsServer, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_stream("S", ["s.>"], retention="interest", duplicate_window=10**9)
    for _ in range(2):
        with caplog.at_level("WARNING", "mama_spark"), Driver(nats_server.url) as driver:
            driver.put(["s.a"], 10)
            driver.drain()
            assert driver.events() == {"acked": 10}
            assert len(driver.bridge.warnings) == 2
    said = [r.getMessage() for r in caplog.records if r.name == "mama_spark"]
    assert [sum(words in text for text in said) for words in ("has none", "stored twice")] == [1, 1]
