"""Option ``exactlyOnce``: repetitions publish what is not stored, whatever the server remembers of ids."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.ledger import NatsBatchLedger
from mama_spark.nats.protocol.acks import AckColumns
from mama_spark.nats.publish.answers import NatsAnswers
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.mamasub import read
from tests.support.nats.nats_accounts import SharedNatsCluster
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import STREAM, Query, batches, rows, values

PACKS = [{}, {"pack": "lines", "packMaxRows": "7"}, {"pack": "arrow", "packMaxRows": "7", "packCompression": "zstd"}]


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as admin:
        admin.create_stream(STREAM, ["once.>"], duplicate_window=WINDOW)  # a repetition finds no id remembered
        yield admin


def stored(admin: Admin) -> Counter[tuple[str, bytes]]:
    return values(admin.messages(STREAM))


@pytest.mark.parametrize(
    ("options", "more"),
    [({"exactlyOnce": "false"}, set()), ({}, {"mama-batch-ends", "mama-batch-lease"}),
     ({"exactlyOnce": "false", "announce": "true", "announceCounts": "1m"}, {"mama-announcer", "mama-progress"})],
    ids=["usual", "exactlyOnce", "announce"],
)  # fmt: skip
def test_a_partition_starts_these_threads(
    nats_server: NatsServer, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str], more: set[str],
) -> None:  # fmt: skip
    names, start = set[str](), threading.Thread.start

    def note(thread: threading.Thread) -> None:
        names.add(re.sub(r"^(flight-log|mama-publisher)-.*", r"\1", thread.name))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    Query(nats_server.url, {"flightLog": str(tmp_path), **options}).attempt(rows(0, 200))
    assert names - {"mama-idle-connections"} == {"flight-log", "mama-publisher"} | more, "that one is of the process"


@pytest.mark.parametrize("pack", PACKS, ids=["off", "lines", "arrow"])
def test_a_repetition_publishes_only_what_is_not_stored(
    nats_server: NatsServer, admin: Admin, pack: dict[str, str]
) -> None:
    query = Query(nats_server.url, pack)
    query.attempt(rows(0, 300))
    forget_ids(admin)
    again = query.attempt(rows(0, 500)[::-1], attempt=1)
    assert (again.counts.acked, again.counts.duplicates) == (500, 300)
    assert stored(admin) == Counter(rows(0, 500))


@pytest.mark.parametrize("pack", PACKS[::2], ids=["off", "arrow"])
def test_equal_rows_in_other_partitions_are_stored_as_often_as_they_occur(
    nats_server: NatsServer, admin: Admin, pack: dict[str, str]
) -> None:
    query, wanted = Query(nats_server.url, pack), rows(0, 400, copies=4)
    query.attempt(wanted[:150], run="first")
    forget_ids(admin)
    with ThreadPoolExecutor(3) as pool:  # the copies of each row are in all partitions
        parts = [(number, wanted[number::3]) for number in range(3)]
        reports = list(pool.map(lambda part: query.attempt(part[1], partition=part[0], run="second"), parts))
    assert stored(admin) == Counter(wanted)
    assert sum(report.counts.duplicates for report in reports) == 150
    forget_ids(admin)
    halves = [query.attempt(wanted[half::2], partition=half, run="third") for half in range(2)]
    assert stored(admin) == Counter(wanted)
    assert [half.counts.duplicates for half in halves] == [200, 200]


def test_a_repetition_stores_what_is_missing_behind_what_is_there(nats_server: NatsServer, admin: Admin) -> None:
    """With ``order=partition``, too: a stream is only appended to. The first attempt has left out two rows."""
    wanted = rows(0, 100)
    query = Query(nats_server.url, {"order": "partition"})
    query.attempt([row for i, row in enumerate(wanted) if i not in (3, 50)])
    forget_ids(admin)
    again = query.attempt(wanted + rows(100, 120), attempt=1)
    assert (again.counts.acked, again.counts.duplicates) == (120, 98)
    numbers = [int(message.payload.split()[1]) for message in admin.messages(STREAM)]
    assert numbers == [n for n in range(100) if n not in (3, 50)] + [3, 50, *range(100, 120)]


def test_two_attempts_at_once_store_each_row_once(nats_server: NatsServer, admin: Admin) -> None:
    """The second one waits as long as the first one renews its marker, and then finds everything."""
    query = Query(nats_server.url, {"waitTimeout": "30s"})  # a lease that a slow thread renews in time, too
    slow = threading.Thread(target=lambda: query.attempt(batches(rows(0, 200), 20, 0.3)))
    slow.start()
    eventually(lambda: admin.info(STREAM)["state"]["messages"], "the first one publishes")
    second = query.attempt(rows(0, 200), attempt=1)
    slow.join()
    assert second.counts.duplicates == 200
    assert stored(admin) == Counter(rows(0, 200))


def test_an_attempt_that_stood_still_publishes_nothing_when_another_has_taken_over(
    nats_server: NatsServer, admin: Admin
) -> None:
    query = Query(nats_server.url)
    frozen = get_context("fork").Process(target=query.attempt, args=(batches(rows(0, 2_000), 20, 0.1),))
    frozen.start()
    assert frozen.pid is not None
    try:
        eventually(lambda: admin.info(STREAM)["state"]["messages"], "the first one publishes")
        os.kill(frozen.pid, signal.SIGSTOP)
        forget_ids(admin)
        query.attempt(rows(0, 2_000), attempt=1)
        forget_ids(admin)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    frozen.join(60)
    assert frozen.exitcode == 1
    assert stored(admin) == Counter(rows(0, 2_000))


def test_what_was_removed_before_it_was_read_back_ends_the_task(nats_server: NatsServer, admin: Admin) -> None:
    query = Query(nats_server.url)
    query.attempt(rows(0, 100))
    admin.api(f"STREAM.PURGE.{STREAM}", {"seq": 11})
    report = query.attempt(rows(0, 100), attempt=1)
    assert report.fatal is not None
    assert (
        "10 messages of stream 'ONCE' that were stored since batch 7 began are removed (sequences 1 to 10)"
        in report.fatal
    )
    forget_ids(admin)
    report = query.with_options(onRetention="publish").attempt(rows(0, 100), attempt=2)
    assert (report.counts.acked, report.counts.duplicates) == (100, 90)


def test_ids_of_a_column_and_dead_letters_are_stored_once(nats_server: NatsServer, admin: Admin) -> None:
    query = Query(
        nats_server.url,
        {"idColumn": "key", "onError": "deadletter", "deadLetterTopic": "once.dead"},
        more=("key",),
    )

    def come() -> Iterator[pa.RecordBatch]:
        for batch in batches([*rows(0, 50), ("other.topic", b"nobody takes it")], 60):
            keys = pa.array([f"key {n}" for n in range(batch.num_rows)])
            yield batch.append_column("key", keys)

    first = query.attempt(come())
    forget_ids(admin)
    again = query.attempt(come(), attempt=1)
    assert (first.counts.acked, first.counts.dead_lettered) == (50, 1)
    assert (again.counts.duplicates, again.counts.dead_lettered) == (50, 1)
    assert admin.info(STREAM)["state"]["messages"] == 51


@pytest.mark.own_server(config="max_subscriptions: 1")
def test_who_reads_where_a_connection_may_only_have_the_subscription_that_writes_need_hears_what_to_raise(
    nats_server: NatsServer, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(nats_server.url)
    assert query.attempt(rows(0, 10)).counts.acked == 10
    assert "raise max_subscriptions" in str(query.attempt(rows(0, 10), attempt=1).fatal), "it reads what is stored"
    with pytest.raises(ConfigError, match="raise max_subscriptions"):
        read(nats_server.url, topics="once.>")
    assert "maximum subscriptions exceeded" in caplog.text
    assert admin.info(STREAM)["state"]["messages"] == 10


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.own_server(name=name), id=name or "without a name") for name in ("mama", "")],
)
def test_what_a_killed_server_had_stored_is_looked_for_before_it_is_sent_again(
    nats_server: NatsServer, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgements of a whole window are lost, and the server comes back when it has forgotten the ids."""
    assert nats_server.name == name
    wanted, killed, real = rows(0, 600), threading.Event(), NatsAnswers.on_acks

    def on_acks(self: NatsAnswers, columns: list[AckColumns]) -> None:
        if killed.is_set():
            real(self, columns)

    monkeypatch.setattr(NatsAnswers, "on_acks", on_acks)

    def kill_and_restart() -> None:
        eventually(lambda: admin.info(STREAM)["state"]["messages"] >= 256, "a window is stored")
        forget_ids(admin)
        nats_server.kill()
        killed.set()
        nats_server.start()

    killer = threading.Thread(target=kill_and_restart)
    killer.start()
    options = {"maxInFlight": "256", "waitTimeout": "60s", "retryDeadline": "120s"}
    report = Query(nats_server.url, options).attempt(wanted)
    killer.join()
    assert (report.counts.acked, report.counts.duplicates) == (600, 256)
    with Admin(nats_server.url) as after:
        assert stored(after) == Counter(wanted)


def test_leaders_that_change_between_marker_and_first_message_and_in_the_middle_lose_and_double_nothing(
    nats_cluster: SharedNatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(nats_cluster.url) as admin:
        config: dict[str, Any] = {"name": STREAM, "subjects": ["once.>"], "num_replicas": 3}
        config["duplicate_window"] = 1_000_000_000
        eventually(lambda: "error" not in admin.api(f"STREAM.CREATE.{STREAM}", config), "three peers are known")
        calls, real = [0], NatsBridge.send

        def send(self: NatsBridge, batch: object, first: int) -> int:
            calls[0] += 1
            if calls[0] in (1, 4):
                admin.api(f"STREAM.LEADER.STEPDOWN.{STREAM}")
            return real(self, batch, first)  # type: ignore[arg-type]

        monkeypatch.setattr(NatsBridge, "send", send)
        changes, real_read = list[dict[str, Any]](), NatsBatchLedger.read

        def read_back(self: NatsBatchLedger, *args: Any, **more: Any) -> object:
            changes.append(admin.api(f"STREAM.LEADER.STEPDOWN.{STREAM}"))
            return real_read(self, *args, **more)

        query = Query(nats_cluster.url, {"maxInFlight": "64"})
        query.attempt(rows(0, 400))
        forget_ids(admin, config["duplicate_window"])
        monkeypatch.setattr(NatsBatchLedger, "read", read_back)
        again = query.attempt(rows(0, 600), attempt=1)
        assert changes[0]["success"]
        assert again.counts.duplicates >= 400
        assert stored(admin) == Counter(rows(0, 600))
        assert admin.info("MAMA_BATCHES")["config"]["num_replicas"] == 3


def test_streams_that_cannot_serve_are_named_before_anything_is_sent(nats_server: NatsServer, admin: Admin) -> None:
    def refused(says: str) -> None:
        assert says in (Query(nats_server.url).attempt(rows(0, 10)).fatal or "")
        assert not admin.info(STREAM)["state"]["messages"]

    admin.create_stream("TAKEN", ["MAMA_BATCHES.>"])
    refused("option exactlyOnce needs the stream 'MAMA_BATCHES'")
    admin.api("STREAM.DELETE.TAKEN")
    admin.api(f"STREAM.DELETE.{STREAM}")
    # the process has a connection by which it knew the stream
    admin.create_stream(STREAM, ["once.>"], retention="workqueue")
    refused("has the retention 'workqueue'")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"retention": "interest"}, "has the retention 'interest'"),
        ({"max_msgs": 1}, "keeps the last 1 records (max_msgs)"),
        ({"max_bytes": 1}, "keeps the last 1 bytes (max_bytes)"),
        ({"subject_transform": {"src": ">", "dest": "x.>"}}, "under other subjects (subject_transform)"),
        ({"subjects": ["MARKED.>"]}, "does not take MARKS.>"),
        ({"no_ack": True}, "acknowledges nothing (no_ack)"),
        ({"max_age": 10**9, "duplicate_window": 10**9}, None),
    ],
    ids=str,
)
def test_a_stream_that_loses_markers_is_refused_and_one_that_keeps_them_too_short_is_said(
    nats_server: NatsServer, admin: Admin, config: dict[str, Any], says: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_stream("MARKS", **{"subjects": ["MARKS.>"], "max_msgs_per_subject": 1, **config})
    report = Query(nats_server.url, {"batchesStream": "MARKS"}).attempt(rows(0, 10))
    if says is None:
        assert report.fatal is None
        assert "keeps markers of exactlyOnce for 1 s (max_age)" in caplog.text
        return
    assert "cannot keep its markers (option batchesStream): stream 'MARKS'" in (report.fatal or "")
    assert says in (report.fatal or "")
    assert not admin.info(STREAM)["state"]["messages"]


def test_a_bridge_that_cannot_is_refused_on_the_driver() -> None:
    with pytest.raises(ConfigError, match="exactlyOnce"):
        Query("memory://").job()
