"""Streams that are purged, deleted or made again while they are read, and of kinds that cannot be read."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.engines.jetstream.engine import JetStreamEngine
from mama_spark.nats import NatsSettings
from mama_spark.nats.ledger import NatsBatchLedger
from mama_spark.nats.read import stream_index as module
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.log_suite import everything, numbers, rows
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_log import MANY, _names, consumers, fill, reading
from tests.support.nats.nats_servers import Admin


def test_what_is_deleted_while_it_is_read_is_left_out(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name)
    with reading(shared.url) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        found = list(rows(next(batches)))
        gone = [MANY - 5, MANY - 1, MANY]
        for sequence in gone:
            admin.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
        found += everything(batches)
        assert [r.sequence for r in found] == [n for n in range(1, MANY + 1) if n not in gone]
        assert log.missing(0, MANY) == [(MANY - 5, MANY - 5), (MANY - 1, MANY)]


def test_a_purge_while_it_is_read_ends_the_range(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name)
    with reading(shared.url) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        found = list(rows(next(batches)))
        admin.api(f"STREAM.PURGE.{name}")
        found += everything(batches)
        assert [r.sequence for r in found] == list(range(1, len(found) + 1))
        assert len(found) < MANY
        assert log.missing(0, MANY) == [(1, MANY)]
        assert (log.bounds().first, log.bounds().last) == (MANY + 1, MANY)


def test_a_stream_that_is_deleted_while_it_is_read_is_named(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name)
    with reading(shared.url) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        next(batches)
        admin.api(f"STREAM.DELETE.{name}")
        with pytest.raises(ConfigError, match=f"there is no stream '{name}'"):
            list(batches)
        for call in (log.bounds, lambda: log.sequence_at(0), lambda: log.trim(5), lambda: log.missing(0, 5)):
            with pytest.raises(ConfigError, match=name):
                call()
        with pytest.raises(ConfigError, match=name):
            list(log.read(0, 5))


def test_a_stream_that_is_made_again_is_another_one(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name)
    with reading(shared.url) as logs:
        log = logs.log(name)
        before = log.bounds().identity
        batches = log.read(0, MANY)
        next(batches)
        admin.api(f"STREAM.DELETE.{name}")
        admin.create_stream(name, [f"{name}.>"])
        with pytest.raises(ConfigError, match="deleted and made again"):
            list(batches)
        assert log.bounds().identity != before


def test_more_holes_than_the_server_lists_are_found_by_looking(
    shared: NatsServer, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shared.url, name, 300, topics=3)
    admin.api(f"STREAM.PURGE.{name}", {"filter": f"{name}.1"})
    admin.api(f"STREAM.PURGE.{name}", {"seq": 20})
    with reading(shared.url) as logs:
        log = logs.log(name)
        listed = [log.missing(low, high) for low, high in ((0, 300), (0, 400), (25, 26), (30, 31), (50, 90))]
        assert listed[0][0] == (1, 20)
        assert listed[0][-1] == (299, 299)
        monkeypatch.setattr(module, "MOST_LISTED", 3)
        assert [log.missing(low, high) for low, high in ((0, 300), (0, 400), (25, 26), (30, 31), (50, 90))] == listed


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_stream_that_drops_what_is_consumed_is_no_log_for_anybody(
    shared: NatsServer, admin: Admin, retention: str
) -> None:
    name, says = next(_names), f"has the retention '{retention}': it drops what its consumers have taken"
    admin.create_stream(name, [f"{name}.>"], retention=retention)
    theirs = {"stream_name": name, "config": {"durable_name": "theirs", "ack_policy": "explicit"}}
    admin.api(f"CONSUMER.CREATE.{name}.theirs", theirs)
    fill(shared.url, name, 10)
    with reading(shared.url) as logs, pytest.raises(ConfigError, match=says):
        logs.log(name)
    broker = JetStreamEngine(b"st", {"servers": shared.url, "stream": name, "subjects": name})
    with contextlib.closing(broker), pytest.raises(ConfigError, match=says):
        broker.start()
    ledger = NatsBatchLedger(NatsSettings((shared.url,), exactly_once=True), 10.0)
    ledger.open()
    with contextlib.closing(ledger), pytest.raises(ConfigError, match=says):
        ledger.streams_of(pa.array([f"{name}.a"]))
    assert consumers(admin, name) == ["theirs"]
    assert admin.info(name)["state"]["messages"] == 10


def test_a_stream_that_keeps_idle_consumers_for_a_short_time_only_is_read(shared: NatsServer, admin: Admin) -> None:
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"], consumer_limits={"inactive_threshold": 2 * 10**9})
    fill(shared.url, name, 10)
    with reading(shared.url) as logs:
        assert numbers(logs.log(name).read(0, 10)) == list(range(1, 11))
        assert logs.log(name).sequence_at(0) == 1
        with contextlib.closing(logs.served(name).tail(3, [], "what follows it")) as tail:
            assert numbers([eventually(tail.poll, "it has records")]) == list(range(4, 11))


def test_topics_lie_in_several_streams_or_in_none(shared: NatsServer, admin: Admin) -> None:
    one, two = next(_names), next(_names)
    admin.create_stream(one, ["several.a.>"])
    admin.create_stream(two, ["several.b.x", "several.deep.*.>"])
    fill(shared.url, one, 0)
    with reading(shared.url) as logs:
        assert logs.names(["several.>"]) == sorted([one, two])
        assert logs.names(["several.deep.>"]) == [two]
        assert logs.names(["several.a.b", "several.b.x"]) == sorted([one, two])
        assert {one, two} <= set(logs.names([]))
        for topic in ("several.b.y", "nothing.>", "several"):
            with pytest.raises(ConfigError, match=topic):
                logs.names(["several.a.b", topic])
        assert numbers(logs.log(one).read(0, 5, ["several.b.x"])) == [], "no topic of this stream"
