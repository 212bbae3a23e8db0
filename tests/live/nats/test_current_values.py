"""``mamasub`` reads the last message of each topic, and key-value buckets that another client writes."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mama_spark.contracts.errors import DataLost
from mama_spark.nats.read import pull_subscription, range_reader
from mama_spark.nats.read.current import read_newest
from mama_spark.nats.read.stream_log import NatsLog
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SubscribeOptions
from mama_spark.registry import log_bridge
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.subscribe.current_rows import current_records
from mama_spark.testing.waiting import eventually
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.nats.mamasub import StreamQuery, read, rows_of
from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import plain, store


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    logging.getLogger("mama_spark").setLevel(logging.ERROR)
    with Admin(nats_server.url) as found:
        yield found
    logging.getLogger("mama_spark").setLevel(logging.NOTSET)


def bucket(admin: Admin, name: str, **config: Any) -> KeyValue:
    return admin._run(admin._client.jetstream().create_key_value(KeyValueConfig(bucket=name, **config)))


def keys(rows: list[dict[str, Any]]) -> dict[str, tuple[bytes | None, int, str]]:
    found = {row["key"]: (row["value"], row["revision"], row["operation"]) for row in rows}
    assert len(found) == len(rows), "a key is there once"
    return found


def state_at(sequence: int, history: list[dict[str, Any]]) -> dict[str, tuple[bytes | None, int, str]]:
    """What a replay of the whole stream says."""
    return keys(list({row["key"]: row for row in history if row["revision"] <= sequence}.values()))


def test_what_another_client_does_to_keys_is_read(nats_server: NatsServer, admin: Admin) -> None:
    url, run = nats_server.url, admin._run
    kv = bucket(admin, "all", history=3, limit_marker_ttl=3)
    for key, value in (("a.b", b"1"), ("c", b"old"), ("c", b"\0\xff"), ("gone", b"x"), ("purged", b"x"), ("e", b"")):
        run(kv.put(key, value))
    run(kv.delete("gone"))
    run(kv.purge("purged"))
    run(admin._client.jetstream().publish("$KV.all.h", b"with", headers={"x": "y", "Nats-Msg-Id": "n"}))
    run(kv.create("short", b"lived", msg_ttl=3))  # no less than a marker lives
    admin.update_stream("KV_all", subject_delete_marker_ttl=3600 * 10**9)  # its own is still there when it is read
    there = {"a.b": (b"1", 1, "put"), "c": (b"\0\xff", 3, "put"), "e": (b"", 6, "put"), "h": (b"with", 9, "put")}
    eventually(lambda: admin.info("KV_all")["state"]["last_seq"] == 11, "the marker of the expired key")
    deleted = {"gone": (None, 7, "delete"), "purged": (None, 8, "purge"), "short": (None, 11, "expired")}
    assert keys(read(url, bucket="all", includeDeleted="true")) == there | deleted
    rows = read(url, bucket="all")
    assert keys(rows) == there
    assert {row["key"]: row["headers"] for row in rows if row["headers"]} == {"h": [("x", ["y"])]}
    assert list(keys(read(url, bucket="all", topics="a.>,c"))) == ["a.b", "c"]
    assert [row["revision"] for row in read(url, bucket="all", latestPerTopic="false", topics="c,gone")] == [2, 3, 4, 7]
    of_topics = read(url, stream="KV_all", latestPerTopic="true")
    assert {row["topic"]: (row["sequence"], row["operation"]) for row in of_topics} == {
        f"$KV.all.{key}": (revision, "put") for key, (_, revision, _) in there.items()
    }


@contextlib.contextmanager
def changing(admin: Admin, subjects: list[str]) -> Iterator[None]:
    """Another thread writes, for as long as this lasts, and waits for the last acknowledgement of each fifty: what a
    cluster takes faster than its replicas apply it is behind for as long as the machine is slow."""
    ends = threading.Event()

    async def some(first: int) -> None:
        for i in range(first, first + 49):
            await admin._client.publish(subjects[i % len(subjects)], b"change %d" % i)
        await admin._client.request(subjects[(first + 49) % len(subjects)], b"change %d" % (first + 49), 2.0)

    def write() -> None:
        for turn in range(1_000_000):
            if ends.is_set():
                return
            with contextlib.suppress(NatsTimeoutError, NoRespondersError):  # a cluster without a leader
                admin._run(some(50 * turn))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def written(first: int, last: int, n: int) -> list[dict[str, Any]]:
    """All revisions of ``n`` keys that got ``first`` messages in turn, and then those of :func:`changing`."""
    values = [b"first"] * first + [b"change %d" % i for i in range(last - first)]
    return [{"key": str(i % n), "value": v, "revision": i + 1, "operation": "put"} for i, v in enumerate(values)]


@pytest.mark.parametrize(("rounds", "each"), [(1, -1), (4, -1), (1, 1)], ids=["all", "sparse", "last"])
def test_a_snapshot_is_the_state_at_its_sequence_while_others_write(
    nats_server: NatsServer, admin: Admin, rounds: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More keys than a request or a batch brings: a server loses the last message of a subject at which a request ends
    by its size. Where the last message of a key is kept, what has changed before it was read is left to the changes."""
    for module in (range_reader, pull_subscription):
        monkeypatch.setattr(module, "REQUEST_BYTES", 10_000)
        monkeypatch.setattr(module, "ROWS", 2_048)
    name, n = f"busy{rounds}{each}", 3_000
    admin.create_stream(f"KV_{name}", [f"$KV.{name}.>"], max_msgs_per_subject=each)
    topics = [f"$KV.{name}.{key}" for key in range(n)]
    for _ in range(rounds):
        store(admin, f"KV_{name}", [(topic, b"first", None) for topic in topics])
    found, parts = [], []
    with changing(admin, topics):
        for _ in range(2):
            query = StreamQuery(nats_server.url, bucket=name, includeDeleted="true")
            parts.append((query, query.offset[f"KV_{name}"]["snapshot"], query.batch()))
            found.append(read_all(nats_server.url, bucket=name))
    last = admin.info(f"KV_{name}")["state"]["last_seq"]
    history = written(rounds * n, last, n)
    for snapshot, rows in found:
        assert keys(rows) == state_at(snapshot, history)
    for query, snapshot, rows in parts:
        there, state = keys(rows), state_at(snapshot, history)
        assert there.items() <= state.items() if each == 1 else there == state
        assert keys(list({row["key"]: row for row in rows + query.batch()}.values())) == state_at(last, history)


def read_all(url: str, **options: str) -> tuple[int, list[dict[str, Any]]]:
    """The rows of a batch, and the sequence as of which they are."""
    rows = read(url, **options)
    return max(row["revision"] for row in rows), rows


def test_all_that_is_current_is_found_though_it_has_changed_since_the_stream_was_asked(
    nats_server: NatsServer, admin: Admin
) -> None:
    """More than one batch of a reader, which is behind the end that the stream had then from its first one on."""
    admin.create_stream("CHANGED", ["changed.>"], max_msgs_per_subject=1)
    topics = [(f"changed.{key}", b"", None) for key in range(10_000)]
    store(admin, "CHANGED", topics)
    options = SubscribeOptions.parse({"url": nats_server.url, "stream": "CHANGED"})
    with contextlib.closing(log_bridge(options, 10.0)) as bridge:
        bridge.open()
        log = bridge.log("CHANGED")
        assert isinstance(log, NatsLog)
        store(admin, "CHANGED", topics)
        found = current_records(read_newest(log._logs, log.info, [], True))
    assert found.sequences.tolist() == list(range(10_001, 20_001))


def test_a_bucket_that_is_made_again_brings_changes_and_its_checkpoint_goes_on(
    nats_server: NatsServer, admin: Admin
) -> None:
    options = {"bucket": "again", "failOnDataLoss": "false"}
    admin._run(bucket(admin, "again").put("a", b"old"))
    query = StreamQuery(nats_server.url, **options)
    assert keys(query.batch()) == {"a": (b"old", 1, "put")}
    admin.api("STREAM.DELETE.KV_again")
    kv = bucket(admin, "again", history=2)
    found = []
    for value in (b"1", b"2"):
        admin._run(kv.put("a", value))
        query = StreamQuery(nats_server.url, query.offset, **options)
        found.append(keys(query.batch()))
    assert found == [{"a": (b"1", 1, "put")}, {"a": (b"2", 2, "put")}]


def test_where_a_value_a_key_is_kept_a_batch_is_of_the_moment_of_its_task_and_a_stream_leaves_newer_ones_to_the_changes(
    nats_server: NatsServer, admin: Admin
) -> None:
    kv, run = bucket(admin, "one"), admin._run
    for key in "abc":
        run(kv.put(key, b"old"))
    source = MamaSubDataSource({"url": nats_server.url, "bucket": "one"})
    reader = source.reader(source.schema())
    tasks, query = reader.partitions(), StreamQuery(nats_server.url, bucket="one")
    for _ in range(2):  # the first of these is gone, too, which is no loss
        run(kv.put("a", b"new"))
    run(kv.delete("b"))
    run(kv.put("d", b"new"))
    assert keys(rows_of(reader, tasks)) == {"c": (b"old", 3, "put"), "a": (b"new", 5, "put"), "d": (b"new", 7, "put")}
    assert keys(query.batch()) == {"c": (b"old", 3, "put")}
    assert keys(query.batch()) == {"a": (b"new", 5, "put"), "b": (None, 6, "delete"), "d": (b"new", 7, "put")}


def test_what_other_limits_remove_after_a_snapshot_is_a_loss(nats_server: NatsServer, admin: Admin) -> None:
    admin.create_stream("FEW", ["few.>"], max_msgs=5)
    store(admin, "FEW", plain("few.a", 3) + plain("few.b", 2))
    query = StreamQuery(nats_server.url, topics="few.>", latestPerTopic="true")
    assert [row["sequence"] for row in query.batch()] == [3, 5]
    store(admin, "FEW", plain("few.a", 7))
    with pytest.raises(DataLost, match=r"'FEW': 2 sequences 6 to 7"):
        query.batch()


def test_what_limits_remove_of_a_snapshot_before_it_is_read_is_current_no_more(
    nats_server: NatsServer, admin: Admin
) -> None:
    admin.create_stream("THREE", ["three.>"], max_msgs=3)
    store(admin, "THREE", [(f"three.{topic}", b"", None) for topic in "abc"])
    query = StreamQuery(nats_server.url, topics="three.>", latestPerTopic="true")
    store(admin, "THREE", 2 * [("three.c", b"", None)])
    assert [[row["sequence"] for row in query.batch()] for _ in range(2)] == [[3], [4, 5]]


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_too_young_to_expire_was_replaced_and_not_lost(
    nats_server: NatsServer, admin: Admin, quiet: bool
) -> None:
    """The time of the last record that was read tells it, or one before it that is still there."""
    name, run = f"young{quiet}", admin._run
    kv = bucket(admin, name, ttl=3600)
    found, topics = [], ["quiet", "hot"] if quiet else ["hot"]
    for key in topics:
        run(kv.put(key, b"old"))
    query = StreamQuery(nats_server.url, bucket=name)
    if quiet:  # the last of the snapshot is gone, and its time with it
        run(kv.put("hot", b"new"))
    found += query.batch()
    for value in (b"1", b"2"):
        run(kv.put("hot", value))
    found += query.batch()
    assert [row["value"] for row in found] == [b"old", b"2"]


@pytest.mark.parametrize("reading", [False, True])
def test_what_may_have_expired_before_it_was_read_is_a_loss(
    nats_server: NatsServer, admin: Admin, reading: bool
) -> None:
    name, run = f"aged{reading}", admin._run
    kv = bucket(admin, name, ttl=3600)
    run(kv.put("a", b"1"))
    query = StreamQuery(nats_server.url, bucket=name)
    assert len(query.batch()) == 1
    run(kv.put("a", b"2"))
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    (task,) = query.reader.partitions(query.offset, end)
    rows = query.reader.read(task)
    if reading:
        assert len(next(rows)) == 1
    admin.update_stream(f"KV_{name}", max_age=10**8, duplicate_window=10**8)
    eventually(lambda: not admin.info(f"KV_{name}")["state"]["messages"], "all have expired")
    with pytest.raises(DataLost, match="sequence 2: deleted before or while they were read"):
        list(rows)
    run(kv.put("a", b"3"))
    with pytest.raises(DataLost, match=r"sequences? 2"):
        query.batch()
