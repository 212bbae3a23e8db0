"""Option ``exactlyOnce`` over durable streams of a broker: markers, ids read back, and what is refused."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.batch_ledger import MarkerChanged
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge import bridge as bridges
from mama_spark.malamute.bridge.logs import MalamuteLogs
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SinkOptions
from mama_spark.registry import batch_ledger
from mama_spark.testing.waiting import eventually

from tests.support.malamute.broker_process import BrokerHere, BrokerProcess
from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.nats_servers import Admin, FetchedMessage
from tests.support.spark.attempts import Query, rows, values

#: Seconds: the duplicate window, so short that a repetition meets a broker that remembers nothing.
FORGETFUL = 0.1
SETTINGS = f'dedup_window = "{FORGETFUL:g}s"'
ONCE = {"stream": "once"}
#: With each engine of the streams and of the markers; elsewhere only with durable streams.
BOTH = pytest.mark.parametrize("engine", ["durable", "jetstream"], indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    """Settings and engine of a broker whose streams forget ids soon: the shared server's streams, or files."""
    if getattr(request, "param", "durable") == "durable":
        return SETTINGS, None
    nats_server: NatsServer = request.getfixturevalue("nats_server")
    with Admin(nats_server.url) as admin:
        admin.create_stream("mlp-once", ["mlp.once.>"], duplicate_window=WINDOW)
    where = f'engine = "jetstream"\nservers = "{nats_server.url}"\n'
    return f'[[stream]]\npattern = "^MAMA_BATCHES$"\n{where}max_per_subject = 1\ndedup_window = "1s"', where


@pytest.fixture
def broker(tmp_path: Path, engine: tuple[str, str | None]) -> Iterator[BrokerHere]:
    settings, where = engine
    pattern = "^(once|MAMA_BATCHES)" if where is None else "^once$"
    with BrokerHere(tmp_path / "broker", pattern, settings, engine=where) as broker:
        yield broker


def stored(broker: BrokerHere | BrokerProcess, stream: str = "once") -> Counter[tuple[str, bytes]]:
    with MalamuteLogs(MalamuteSettings(ConnectionSettings((broker.url,)))) as logs:
        log = logs.log(stream)
        found = []
        for some in log.read(0, log.bounds().last):
            headers = [None] * len(some) if some.headers is None else some.headers.to_pylist()
            columns = zip(
                some.sequences.tolist(), some.topics.to_pylist(), some.payloads.to_pylist(), headers, strict=True
            )
            found += [FetchedMessage(n, topic, payload, dict(pairs or ())) for n, topic, payload, pairs in columns]
    return values(found)


@pytest.fixture
def forget(request: pytest.FixtureRequest, engine: tuple[str, str | None]) -> Callable[[], None]:
    """Returns when no id is remembered."""
    if engine[1] is None:
        return lambda: time.sleep(2 * FORGETFUL)  # the engine looks at the clock before each batch

    def forget() -> None:
        with Admin(request.getfixturevalue("nats_server").url) as admin:
            forget_ids(admin)

    return forget


@BOTH
@pytest.mark.parametrize("pack", ["off", "lines"])
def test_a_repetition_publishes_only_what_is_not_stored(
    broker: BrokerHere, forget: Callable[[], None], pack: str
) -> None:
    query = Query(broker.url, {**ONCE, **({} if pack == "off" else {"pack": pack, "packMaxRows": "7"})})
    query.attempt(rows(0, 300))
    forget()
    again = query.attempt(rows(0, 500)[::-1], attempt=1)
    assert (again.counts.acked, again.counts.duplicates) == (500, 300)
    assert stored(broker) == Counter(rows(0, 500))


@BOTH
def test_rows_are_told_apart_from_those_of_others_in_the_stream(broker: BrokerHere, forget: Callable[[], None]) -> None:
    """With a prefix the broker looks at messages with such topics only."""
    query = Query(broker.url, {**ONCE, "topicPrefix": "a"})
    other = Query(broker.url, {**ONCE, "txnAppId": "job", "txnVersion": "1"}, batch=None)
    query.attempt(rows(0, 50))
    other.attempt(rows(0, 50))
    forget()
    assert query.attempt(rows(0, 60), attempt=1).counts.duplicates == 50
    assert other.attempt(rows(0, 50)).counts.duplicates == 50


@BOTH
def test_what_was_removed_before_it_was_read_back_ends_the_task(broker: BrokerHere, forget: Callable[[], None]) -> None:
    query = Query(broker.url, ONCE)
    query.attempt(rows(0, 100))
    with MalamuteLogs(MalamuteSettings(ConnectionSettings((broker.url,)))) as logs:
        logs.log("once").trim(11)
    report = query.attempt(rows(0, 100), attempt=1)
    assert "10 messages of stream 'once' that were stored since batch 7 began are removed" in (report.fatal or "")
    forget()
    report = query.with_options(onRetention="publish").attempt(rows(0, 100), attempt=2)
    assert (report.counts.acked, report.counts.duplicates) == (100, 90)


@pytest.mark.parametrize("engine", ["durable", pytest.param("jetstream", marks=pytest.mark.thorough)], indirect=True)
def test_what_a_killed_broker_had_stored_is_looked_for_before_it_is_sent_again(
    tmp_path: Path, engine: tuple[str, str | None], forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgements of a whole window are lost, and the broker comes back when it has forgotten the ids."""
    settings, where = engine
    wanted, killed, real = rows(0, 500), threading.Event(), bridges._report_outcomes

    def report(chunk: Any, *rest: Any) -> None:
        if chunk.stream != "once" or killed.is_set():
            real(chunk, *rest)

    monkeypatch.setattr(bridges, "_report_outcomes", report)
    with BrokerProcess(tmp_path / "broker", "^once$" if where else ".*", settings, engine=where) as broker:

        def kill_and_restart() -> None:
            eventually(lambda: sum(stored(broker).values()) >= 256, "a window is stored")
            broker.kill()
            forget()
            killed.set()
            broker.start()

        Query(broker.url, {**ONCE, "txnAppId": "another", "txnVersion": "1"}, batch=None).attempt([])
        query = Query(broker.url, {**ONCE, "maxInFlight": "256", "waitTimeout": "60s", "retryDeadline": "120s"})
        with ThreadPoolExecutor(1) as pool:
            attempt = pool.submit(query.attempt, wanted)
            eventually(lambda: where or (broker.streams / "once.stream").exists(), "the stream is made")
            kill_and_restart()
            counts = attempt.result().counts
        assert (counts.acked, counts.duplicates) == (500, 256)
        assert stored(broker) == Counter(wanted)


# --- markers -------------------------------------------------------------------------------------------------------


@BOTH
def test_of_those_who_change_a_marker_at_once_one_succeeds(broker: BrokerHere) -> None:
    broker.store("once", MessageBatch.of(["once.a"], [b"the stream is there"]))
    options = SinkOptions.parse({"url": broker.url, "exactlyOnce": "true", **ONCE})

    def count_up(_: int) -> int:
        done = 0
        with closing(batch_ledger(options)) as ledger:
            ledger.open()
            while done < 5:
                found = ledger.marker("write.batch")
                try:
                    revision = ledger.set_marker("write.batch", b"%d" % (int(found.value or 0) + 1), found.revision)
                except MarkerChanged:
                    continue
                assert revision > found.revision
                done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(count_up, range(4))) == 20
    with closing(batch_ledger(options)) as ledger:
        ledger.open()
        assert ledger.marker("write.batch").value == b"20"
        assert ledger.marker("write.other").revision == 0


def test_a_marker_outlives_the_broker_and_is_changed_over_a_new_connection(broker: BrokerHere) -> None:
    broker.store("once", MessageBatch.of(["once.a"], [b"the stream is there"]))
    options = SinkOptions.parse({"url": broker.url, "exactlyOnce": "true", **ONCE})
    with closing(batch_ledger(options)) as ledger:
        ledger.open()
        first = ledger.set_marker("write.batch", b"one", 0)
        broker.stop()
        broker.start()
        assert ledger.marker("write.batch") == (first, b"one")
        second = ledger.set_marker("write.batch", b"two", first)
        assert ledger.marker("write.batch") == (second, b"two")
        with pytest.raises(MarkerChanged):
            ledger.set_marker("write.batch", b"three", first)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "forgets"}, "needs a durable stream"),
        ({"stream": "once", "batchesStream": "forgets"}, "must be durable"),
        ({}, "needs one stream for all rows"),
    ],
)
def test_what_keeps_nothing_is_refused_before_anything_is_sent(
    broker: BrokerHere, options: dict[str, str], says: str
) -> None:
    report = Query(broker.url, options).attempt(rows(0, 10))
    assert says in (report.fatal or "")


def test_a_column_that_names_a_stream_for_each_row_is_refused_on_the_driver() -> None:
    with pytest.raises(ConfigError, match="the column 'stream' names one for each"):
        Query("mlp://127.0.0.1:1", ONCE, more=("stream",)).job()
