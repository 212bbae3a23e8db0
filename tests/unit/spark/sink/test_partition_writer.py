"""One partition's write without a JVM, against the in-memory broker."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed, ConfigError, Unavailable
from mama_spark.flightlog.columns import FlightColumns
from mama_spark.flightlog.staging import Staging
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.sink.job import PartitionReport
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.testing.waiting import eventually

from tests.support.spark import memory_harness


def batches(n: int) -> Iterator[pa.RecordBatch]:
    for b in range(n):
        values = [b"%d-%d" % (b, i) for i in range(500)]
        yield pa.record_batch({"topic": [f"t.{i % 7}" for i in range(500)], "value": values})


def publish(
    broker: MemoryBroker, log: Path, rows: Iterator[pa.RecordBatch], options: dict[str, str]
) -> PartitionReport:
    return memory_harness.publish(memory_harness.job(broker, log, **options), rows)


def events(log: Path) -> list[dict[str, Any]]:
    """Rows of publishers and topics in the parts, in order of time."""
    return sorted((r for r in memory_harness.logged(log) if r["kind"] != "flight"), key=lambda r: r["event_time"])


def test_a_partition_leaves_the_life_of_its_publisher_in_the_log_at_every_level(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    report = publish(broker, tmp_path, batches(2), {"flightLogLevel": "errors"})
    assert (report.counts.rows, report.counts.acked, report.fatal) == (1000, 1000, None)
    found = [(r["kind"], r["event"], r["publisher_state"]) for r in events(tmp_path)]
    assert found[:2] == [("publisher", "create", "CREATING"), ("publisher", "live", "LIVE")]
    assert found[-2:] == [("publisher", "destroy", "DESTROYING"), ("publisher", "destroy", "DESTROYED")]
    assert Counter(found[2:-2]) == {("topic", "PUBLISH_CREATE", None): 7, ("topic", "PUBLISH_DESTROY", None): 7}


def test_a_partition_that_fails_has_the_reason_in_its_events(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.then(["ack", "kill"])
    with pytest.raises(Unavailable):
        publish(broker, tmp_path, batches(1), {})
    told = [(r["event"], r["publisher_state"], r["info"]) for r in events(tmp_path) if r["kind"] == "publisher"]
    assert [(e, s) for e, s, _ in told] == [
        ("create", "CREATING"), ("live", "LIVE"), *[("error", "LIVE")] * 3, ("destroy", "DESTROYING"),
        ("destroy", "DESTROYED"),
    ]  # fmt: skip
    assert told[2][2] == "the script cut the connection"
    assert "the script closed the connection" in told[4][2]


def test_a_publisher_that_could_not_connect_never_lived(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.up = False
    with pytest.raises(Unavailable):
        publish(broker, tmp_path, batches(1), {})
    assert [(r["event"], r["publisher_state"]) for r in events(tmp_path)] == [
        ("create", "CREATING"),
        ("error", "CREATING"),
    ]


@pytest.mark.parametrize(("which", "kinds"), [("publisher", {"publisher"}), ("off", set())])
def test_topic_events_can_be_left_out(broker: MemoryBroker, tmp_path: Path, which: str, kinds: set[str]) -> None:
    publish(broker, tmp_path, batches(1), {"topicEvents": which})
    assert {r["kind"] for r in events(tmp_path)} == kinds


@pytest.mark.parametrize("options", [{}, {"onError": "deadletter", "deadLetterTopic": "dead"}], ids=["fail", "dead"])
def test_storage_that_fails_at_the_end_ends_all_waits(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """The log fails when all rows were handed over and several blocks are still to be told."""
    logging, handed_over = threading.Event(), threading.Event()

    def refuse(_: Staging, __: FlightColumns) -> None:
        logging.set()
        handed_over.wait(60)
        raise Unavailable("the disk is gone")

    def rows() -> Iterator[pa.RecordBatch]:
        for i, batch in enumerate(batches(3)):
            yield batch
            if i == 0:
                assert logging.wait(60)
        handed_over.set()

    monkeypatch.setattr(Staging, "add_flights", refuse)
    with pytest.raises(Unavailable, match="the disk is gone"):
        publish(broker, tmp_path / "log", rows(), options)


@pytest.mark.parametrize("pack", ["off", "arrow"])
def test_all_calls_of_the_bridge_until_it_is_closed_come_from_one_thread(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str
) -> None:
    """The contract of bridges; the thread is the publisher's, since the task's waits for rows."""
    calls: dict[str, set[int]] = {}

    def recorded(name: str) -> Callable[..., Any]:
        real = getattr(MemoryBridge, name)

        def call(self: MemoryBridge, *args: Any) -> Any:
            calls.setdefault(name, set()).add(threading.get_ident())
            return real(self, *args)

        return call

    for name in ("open", "prepare", "send", "flush", "poll"):
        monkeypatch.setattr(MemoryBridge, name, recorded(name))
    report = publish(broker, tmp_path, batches(3), {"pack": pack})
    assert report.counts.acked == 1500
    assert calls.keys() >= {"open", "prepare", "send", "poll"}
    assert len(set.union(*calls.values())) == 1
    assert threading.get_ident() not in calls["prepare"]


def test_a_bridge_that_cannot_be_opened_fails_the_task_with_its_own_error(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: MemoryBridge) -> None:
        raise ConfigError("no such stream")

    monkeypatch.setattr(MemoryBridge, "open", refuse)
    assert publish(broker, tmp_path, batches(1), {}).fatal == "no such stream"
    assert [(r["event"], r["info"]) for r in events(tmp_path)] == [("create", None), ("error", "no such stream")]


def test_rows_that_timed_out_fail_the_task_with_the_cause_of_the_outage(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.then(["drop"] * 100_000)
    options = {"waitTimeout": "50ms", "retryDeadline": "500ms", "maxInFlight": "1000"}
    with pytest.raises(Unavailable, match=r"nothing was acknowledged for .*: no answer comes") as caught:
        publish(broker, tmp_path, batches(1), options)
    text = str(caught.value)
    assert "; partition 0: 500 rows: 0 acked, 0 failed, 500 timed out; flight log: " in text
    assert "; rows of other tasks or attempts may be stored already, and a repetition of the write stores" in text
    assert "idPrefix='run'" in text


def test_an_outage_that_ends_the_publisher_says_what_is_stored_and_how_to_repeat_it(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MemoryBridge, "duplicate_window", lambda _: 60.0)

    def rows() -> Iterator[pa.RecordBatch]:
        first, second = batches(2)
        yield first
        eventually(lambda: len(broker.messages()) == 500, "the first batch is stored")
        broker.up = False
        yield second

    options = {"waitTimeout": "100ms", "retryDeadline": "1s"}
    with caplog.at_level("WARNING", "mama_spark"), pytest.raises(BackgroundTaskFailed) as caught:
        publish(broker, tmp_path, rows(), options)
    text = str(caught.value)
    assert text.startswith("the publisher ended: nothing was acknowledged for 1 s: ")
    assert "; partition 0: 1,000 rows: 500 acked, " in text
    assert f"; flight log: {tmp_path} (run_id 'run', batch_id None)" in text
    assert "; 500 rows are stored already, and a repetition of the write stores them again" in text
    assert "idPrefix='run' (this run)" in text
    assert "within the stream's duplicate window of 60 s" in text
    lines = [record.getMessage() for record in caplog.records]
    assert "onError" not in text
    assert any(line.startswith("mamapub: partition 0: nothing was acknowledged for ") for line in lines)


def test_a_task_that_waits_for_the_middleware_begins_when_it_is_there(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.up = False
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(publish, broker, tmp_path, batches(2), {"onUnavailable": "wait"})
        eventually(lambda: "waiting until it does (onUnavailable=wait)" in caplog.text, "it says what it waits for")
        broker.up = True
        assert task.result(60).counts.acked == 1000


def test_a_task_that_waits_for_the_middleware_holds_its_rows_beyond_every_deadline(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"onUnavailable": "wait", "waitTimeout": "100ms", "retryDeadline": "1s", "maxInFlight": "64"}
    options |= {"retryBackoff": "10ms", "retryMaxBackoff": "50ms"}
    broker.then(["drop"] * 1_000)  # for longer than the deadline
    with caplog.at_level("WARNING", "mama_spark"):
        report = publish(broker, tmp_path, batches(4), options)
    assert (report.counts.rows, report.counts.acked) == (2000, 2000)
    assert len(broker.messages()) == 2000
    assert "waiting until messages are stored again" in caplog.text


def test_a_worker_that_is_used_again_keeps_nothing_of_its_tasks(tmp_path: Path) -> None:
    """Those of a stream that publishes and is read for a day have one worker."""

    def work(n: int) -> None:
        broker = MemoryBroker.get(uuid4().hex)
        publish(broker, tmp_path / str(n), batches(2), {"flightLogPayload": "all"})
        reader = MamaSubDataSource({"url": f"memory://{broker.name}", "topics": ">"}).reader(SCHEMA)
        assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 1_000
        MemoryBroker.forget(broker.name)

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] + int(pa.total_allocated_bytes())

    for n in range(3):
        work(n)
    tracemalloc.start()
    try:
        work(3)
        before = held()
        for n in range(4, 14):
            work(n)
        assert held() - before < 200_000, "of ten tasks of a thousand rows"
    finally:
        tracemalloc.stop()
