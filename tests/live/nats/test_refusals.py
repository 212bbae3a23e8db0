"""What the server refuses, and what it would drop in silence."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import BadTopic, ConfigError, Rejected, TooLarge, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_servers import Admin
from tests.support.nats.plain_nats_connection import PlainNatsConnection


def opened(url: str, **options: Any) -> NatsBridge:
    bridge = NatsBridge(NatsSettings((url,), **options))
    bridge.open()
    return bridge


def refuses(url: str, match: str, kind: type[Exception] = ConfigError, **options: Any) -> None:
    bridge = NatsBridge(NatsSettings((url,), **options))
    with pytest.raises(kind, match=match):
        bridge.open()
    bridge.close()


@pytest.mark.parametrize("mode", ["message", "batch"])
def test_a_full_stream_that_discards_new_fails_what_does_not_fit(
    nats_server: NatsServer, admin: Admin, mode: str
) -> None:
    admin.create_stream("S", ["s.>"], max_msgs=300, discard="new", allow_batched=True)
    with Driver(nats_server.url, window=256, wait_timeout=60.0, ack_mode=mode) as driver:
        driver.put(["s.a"], 400)
        driver.drain()
        assert driver.events() == {"acked": 300, "completed_exceptionally": 100}
        assert "10077" in driver.reasons[0]
        driver.conserved(admin)
        driver.in_order(admin)


@pytest.mark.parametrize("mode", ["message", "batch", "none"])
@pytest.mark.parametrize("request_to", ["$JS.API.STREAM.DELETE.S", "$JS.hub.API.STREAM.PURGE.S", "$SYS.REQ.USER.INFO"])
def test_a_topic_that_is_a_request_to_the_server_is_no_request(
    nats_server: NatsServer, admin: Admin, mode: str, request_to: str
) -> None:
    """Neither by the row, nor by the question of which stream takes it."""
    admin.create_stream("S", ["s.>"], allow_batched=True)
    admin.publish("s.a", b"stays")
    bridge = opened(nats_server.url, ack_mode=mode, dedup=False)
    try:
        faults = dict(bridge.prepare(MessageBatch.of([request_to, "s.b"], [b"", b""])).rejected)
        assert (list(faults), type(faults[0])) == ([0], BadTopic)
    finally:
        bridge.close()
    assert [message.payload for message in admin.messages("S")] == [b"stays"]


REFUSED = (0, 1, 1_200, 1_201, 1_300, 2_999)
DENIED = {"rollup denied": {"Nats-Rollup": ["sub"]}, "trace asked for": {"Nats-Trace-Dest": ["t"]}}
SAID = {"rollup denied": "rollup", "trace asked for": "Nats-Trace-Dest"}


@pytest.mark.parametrize("order", [{"dedup": False}, {"ordered": True}], ids=["unordered", "ordered"])
@pytest.mark.parametrize("cause", ["subject taken", *DENIED, "all taken"])
def test_of_fast_batches_exactly_those_rows_fail_that_the_server_refuses(
    nats_server: NatsServer, cause: str, order: dict[str, Any]
) -> None:
    """At the beginning of a batch, in it, one after the other, and at the beginning of later ones."""
    limits = {} if cause in DENIED else {"max_msgs_per_subject": 1, "discard_new_per_subject": True}
    refused = range(300) if cause == "all taken" else REFUSED
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"], discard="new", allow_batched=True, **limits)
        with PlainNatsConnection(nats_server.url) as before:
            for row in refused if limits else ():
                before.publish(f"s.{row}", before.inbox + b"taken")
                before.answer()
        n = 300 if cause == "all taken" else 3_000
        denied: list[dict[str, list[str]] | None] = [None] * n
        for row in () if limits else refused:
            denied[row] = DENIED[cause]
        with Driver(nats_server.url, wait_timeout=60.0, ack_mode="batch", attempts=1, **order) as driver:
            driver.put([f"s.{row}" for row in range(n)], n, headers=denied)
            driver.drain()
            failed = sorted(int(o.payload[:8]) for o in driver.outcomes if o.event != "acked")
            assert failed == list(refused), driver.reasons[:3]
            assert all(SAID.get(cause, "subject exceeded") in r for r in driver.reasons)
            if cause == "all taken":
                assert driver.counters.sends < 2 * n, "behind the first refusal each message is sent alone, once more"
            if order.get("ordered"):
                stored = [m for m in admin.messages("S") if m.payload]
                assert [m.payload for m in stored] == sorted(m.payload for m in stored)


def test_a_stream_that_was_missing_is_found_once_it_is_made(nats_server: NatsServer) -> None:
    """Also by the next task of the same process, which has the same connection."""

    def rejected(*topics: str) -> list[str]:
        bridge = opened(nats_server.url)
        try:
            found = bridge.prepare(MessageBatch.of([*topics], [b""] * len(topics))).rejected
        finally:
            bridge.close()
        return [topics[row] for row, _ in found]

    many = [f"m.{i}" for i in range(20)]  # more than are asked for one by one
    with Admin(nats_server.url) as admin:
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
    login: dict[str, Any] = {"user": "a", "password": "p"}
    with NatsServer(tmp_path / "n", config=limits) as server, Admin(server.url, **login) as admin:
        admin.create_stream("S", ["s.>"], storage="memory")
        with Driver(server.url, deadline=110.0, ack_mode="message", **login) as driver:
            driver.put(["s.a"], 15, size=10_000)
            eventually(lambda: driver.counters.sends > 15 or driver.reasons, "those that do not fit are sent again")
            admin.api("STREAM.PURGE.S")
            driver.drain()
            assert driver.events() == {"acked": 15}, driver.reasons[:1]


def test_header_and_payload_over_the_limit_never_reach_the_server(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "n", config="max_payload: 1024") as server, Admin(server.url) as admin:
        admin.create_stream("S", ["s.>"])
        bridge = opened(server.url, dedup=False)
        headers: list[dict[str, list[str]] | None] = [{"H": ["y" * 100]}, {"H": ["y" * 100]}]
        prepared = bridge.prepare(MessageBatch.of(["s.a"] * 2, [b"x" * 1000, b"x" * 800], headers))
        bridge.close()
        assert [(row, type(error)) for row, error in prepared.rejected] == [(0, TooLarge)]
        with Driver(server.url, dedup=False, ack_mode="message") as driver:
            driver.put(["s.a"], 2, size=1000, headers=headers)
            driver.put(["s.a"], 2, size=800, headers=headers)
            driver.drain()
            assert driver.events() == {"acked": 2, "completed_exceptionally": 2}
            driver.conserved(admin)


@pytest.mark.parametrize(
    "way",
    [{}, {"ack_mode": "batch", "stream": "S"}, {"ack_mode": "batch", "stream": "S", "ordered": True}],
    ids=["messages", "batches", "batches in order"],
)
def test_a_denied_subject_fails_its_rows_at_once_and_no_others(tmp_path: Path, way: dict[str, Any]) -> None:
    users = 'authorization { users = [ {user: a, password: p, permissions: {publish: {deny: "s.Secret"}}} ] }'
    with NatsServer(tmp_path / "n", config=users) as server:
        login: dict[str, Any] = {"user": "a", "password": "p"}
        with Admin(server.url, **login) as admin:
            admin.create_stream("S", ["s.>"], allow_batched=True)
            with Driver(server.url, wait_timeout=300.0, deadline=300.0, **way, **login) as driver:
                driver.put(["s.Secret", "s.open"], 200)
                eventually(lambda: len(driver.outcomes) == 200, "the refusal is told, not waited for")
                assert driver.events() == {"acked": 100, "completed_exceptionally": 100}
                assert "NOT_ENTITLED" in driver.reasons[0]
                driver.conserved(admin)


def test_what_does_not_serve_is_refused_at_open(nats_server: NatsServer, admin: Admin, tmp_path: Path) -> None:
    limit = r"127\.0\.0\.1:9.*the limit is option connectTimeout; waitTimeout begins when messages are sent"
    refuses("nats://a:secret@127.0.0.1:9", limit, Unavailable, connect_timeout=0.5)
    admin.create_stream("OTHER", ["o.>"])
    refuses(nats_server.url, "OTHER", stream="S")
    with NatsServer(tmp_path / "n", jetstream=None) as without:
        for kind in (NatsBridge, NatsLogs, NatsDiscovery):
            bridge = kind(NatsSettings((without.url,)))
            with pytest.raises(ConfigError, match="JetStream is not enabled"), closing(bridge):
                bridge.open()


def test_a_missing_stream_is_made_when_asked(nats_server: NatsServer, admin: Admin) -> None:
    with Driver(nats_server.url, stream="S", create_stream=True, deadline=20.0) as driver:
        driver.put(["s.a", "s.b.c"], 100)
        driver.drain()
        assert driver.events() == {"acked": 100}
    config = admin.info("S")["config"]
    assert config["duplicate_window"] == 40 * 10**9
    assert config["allow_batched"]


def test_a_stream_that_never_acknowledges_is_refused(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"], no_ack=True)
    refuses(nats_server.url, "no_ack", stream="S")
    bridge = opened(nats_server.url)
    with pytest.raises(ConfigError, match="no_ack"):
        bridge.prepare(MessageBatch.of(["s.a"], [b""]))
    bridge.close()


def test_topics_without_a_stream_are_bad_rows_and_only_all_of_them_an_error(
    nats_server: NatsServer, admin: Admin
) -> None:
    admin.create_stream("S", ["s.>"])
    admin.create_stream("T", ["t.>"])
    bridge = opened(nats_server.url)
    prepared = bridge.prepare(MessageBatch.of(["s.a", "nowhere.b", "t.c"], [b""] * 3))
    assert [(row, type(error)) for row, error in prepared.rejected] == [(1, Rejected)]
    bridge.close()
    bridge = opened(nats_server.url, stream="S")
    prepared = bridge.prepare(MessageBatch.of(["s.a", "t.c"], [b""] * 2))
    assert [row for row, _ in prepared.rejected] == [1]
    bridge.close()
    bridge = opened(nats_server.url)
    with pytest.raises(ConfigError, match=r"nowhere\.b"):
        bridge.prepare(MessageBatch.of(["nowhere.b"], [b""]))
    bridge.close()


@pytest.mark.own_server
def test_ten_thousand_topics_of_one_stream_cost_a_few_questions(nats_server: NatsServer, admin: Admin) -> None:
    admin.create_stream("S", ["s.>"])
    bridge = opened(nats_server.url)
    before = int(nats_server.ask("varz")["in_msgs"])
    topics = [f"s.{i}" for i in range(10_000)] + [f"nowhere.{i}" for i in range(100)]
    prepared = bridge.prepare(MessageBatch.of(topics, [b""] * len(topics)))
    asked = int(nats_server.ask("varz")["in_msgs"]) - before
    bridge.close()
    assert len(prepared.rejected) == 100
    assert asked < 20 + 100, "and one for each topic that no stream has a subject for"


@pytest.mark.own_server
def test_late_acknowledgements_of_an_earlier_lease_are_not_taken_for_new_ones(
    nats_server: NatsServer, admin: Admin
) -> None:
    admin.create_stream("S", ["s.>"])
    first = opened(nats_server.url)
    nats_server.pause()
    assert first.send(MessageBatch.of(["s.old"], [b"old"], None, ["old"]), 0) == 1
    first.close()
    second = NatsBridge(NatsSettings((nats_server.url,)))
    second.open()  # the same connection, warm: nothing is asked
    nats_server.resume()
    assert second.send(MessageBatch.of(["s.new"], [b"new"], None, ["new"]), 0) == 1
    acks = eventually(lambda: second.poll(1.0).acks, "the answer")
    second.close()
    by_sequence = {m.sequence: m.payload for m in admin.messages("S")}
    assert [by_sequence[int(s)] for a in acks for s in a.sequences] == [b"new"]


def test_what_is_questionable_reaches_the_log(nats_server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"], retention="interest", duplicate_window=10**9)
        for _ in range(2):
            with caplog.at_level("WARNING", "mama_spark"), Driver(nats_server.url) as driver:
                driver.put(["s.a"], 10)
                driver.drain()
                assert driver.events() == {"acked": 10}
                assert len(driver.bridge.warnings) == 2
    said = [r.getMessage() for r in caplog.records if r.name == "mama_spark"]
    assert sum("has none" in text for text in said) == 1, "once a connection, not once a bridge"
    assert sum("stored twice" in text for text in said) == 1
