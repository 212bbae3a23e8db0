"""The recorder beside peers that publish: topics and symbols, images, gaps, restarts, the dictionary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from mama_spark.mama.messages.status import MsgStatus, SubscriptionMsgType
from mama_spark.openmama.recorder.record_source import MamaRecordSource
from mama_spark.openmama.recorder.settings import OpenMamaRecorderSettings
from mama_spark.openmama.source.name_server import NameServer
from mama_spark.openmama.wire.frames import FrameType
from mama_spark.recording.recorder import Recorder

from tests.support.openmama.network import Watched, naming, peer, url_of
from tests.support.openmama.recorder import MarketDataScript, RecordedLog, basic, recorded_log, recording
from tests.support.ports import lasting_port

RECAP = SubscriptionMsgType.DQ_SUBSCRIBER


@pytest.fixture
def log() -> Iterator[RecordedLog]:
    with recorded_log() as one:
        yield one


@pytest.fixture
def server() -> Iterator[NameServer]:
    with naming() as one:
        yield one


class Source:
    """A scripted publisher that is polled while the test waits."""

    def __init__(self, script: MarketDataScript) -> None:
        self.script, self._watched = script, Watched(script.peer)
        self._seen = 0

    def until(self, true: Callable[[], Any], what: str) -> None:
        def look() -> Any:
            frames = self._watched.of(self.script.peer).frames
            new, self._seen = frames[self._seen :], len(frames)
            self.script.answer(new)
            return true()

        self._watched.until(look, what)


@pytest.mark.spec("OW29")
def test_messages_of_topics_and_their_gaps_are_recorded(server: NameServer, log: RecordedLog) -> None:
    with peer(url_of(server)) as publisher, recording(log, url_of(server), topics="OM.A, OM.P>"):
        source = Source(MarketDataScript(publisher))
        source.until(lambda: publisher.wanted("OM.A") and publisher.wanted("OM.Px"), "the recorder subscribes")
        for topic, payload in [
            ("OM.A", basic(1)), ("OM.A", basic(2)), ("OM.AB", basic(9)), ("OM.A", basic(5)),
            ("OM.A", basic(9, wConflateCount=4)), ("OM.A", basic(50, sender=6)), ("OM.P1", basic(0)),
            ("OM.P2", b"Qpid"),
        ]:  # fmt: skip
            publisher.publish(topic, payload)
        source.until(lambda: log.rows("corrupt"), "the last message is stored")
    assert log.numbers("OM.A") == [1, 2, 5, 9, 50]
    (gap,) = log.rows("gap")
    assert (gap["topic"], gap["sender"], gap["gap_from"], gap["gap_to"], gap["cause"]) == ("OM.A", "5", 3, 4, "way")
    assert [row["topic"] for row in log.rows()].count("OM.AB") == 0
    kinds = [row["kind"] for row in log.rows() if row["topic"] == "OM.A"]
    assert kinds == ["message", "message", "gap", "message", "message", "message"]
    rows = log.rows()
    assert (rows[0]["kind"], rows[-1]["kind"]) == ("started", "stopped")
    assert all(row["framing"] == "oz" and row["received"] > 0 for row in log.rows("message"))


@pytest.mark.spec("OW29")
def test_packed_records_have_every_message_and_gap_in_order(server: NameServer, log: RecordedLog) -> None:
    """Half of the messages by one recorder, half by the next one, which takes the last numbers from packs; what was
    published while none ran is a gap."""
    missing = range(100, 600, 100)  # of A
    with peer(url_of(server)) as publisher:
        source = Source(MarketDataScript(publisher))

        def record(first: int, last: int) -> Recorder:
            with recording(log, url_of(server), topics="OM.A, OM.B", packMaxRows=50) as recorder:
                source.until(lambda: publisher.wanted("OM.A") and publisher.wanted("OM.B"), "the recorder subscribes")
                for n in range(first, last + 1):
                    for topic in ("OM.B",) if n in missing else ("OM.A", "OM.B"):
                        assert publisher.publish(topic, basic(n))
                source.until(lambda: {row["seq_num"] for row in log.rows("message")} >= {last}, "all are stored")
            source.until(lambda: not publisher.wanted("OM.A"), "the recorder has gone")
            return recorder

        for recorder in (record(1, 299), record(304, 590)):
            assert recorder.counts.recorded == recorder.counts.stored
            assert recorder.counts.waiting == 0
    assert log.numbers("OM.B") == [*range(1, 300), *range(304, 591)]
    rows = [row for row in log.rows("message", "gap") if row["topic"] == "OM.A"]
    numbers = [row["seq_num"] or row["gap_from"] for row in rows]
    assert numbers == [*range(1, 301), *range(304, 591)], "a gap stands in its place"
    gaps = [(row["gap_from"], row["gap_to"], row["cause"]) for row in rows if row["kind"] == "gap"]
    assert gaps == [(n, 303, "away") if n == 300 else (n, n, "way") for n in missing]
    assert log.records() < len(log.rows()) / 5, "most are packed"


@pytest.mark.spec("OW30")
def test_symbols_have_images_and_a_gap_has_a_recap(server: NameServer, log: RecordedLog) -> None:
    with peer(url_of(server)) as publisher, recording(log, url_of(server), symbols="OM.IBM, OM.NONE") as recorder:
        script = MarketDataScript(publisher)
        script.refuses["NONE"] = MsgStatus.BAD_SYMBOL
        script.numbers["IBM"] = 10
        source = Source(script)
        source.until(lambda: log.rows("image") and log.rows("refusal"), "images come")
        script.update("IBM")
        script.update("IBM", skip=2)
        source.until(lambda: log.rows("recap"), "the recap comes")
        script.update("IBM")
        source.until(lambda: log.numbers("OM.IBM") == [11, 14, 15], "the updates are stored")
        assert "images of 2 of 2 symbols" in str(recorder.counts)
    assert [(r.symbol, r.message, kind) for r, kind in script.requests if r.symbol == "IBM"] == [
        ("IBM", SubscriptionMsgType.SUBSCRIBE, FrameType.REQUEST),
        ("IBM", RECAP, FrameType.REQUEST),
    ]
    assert log.numbers("OM.IBM", "image") == [10]
    assert log.numbers("OM.IBM", "recap") == [14]
    assert [(row["gap_from"], row["gap_to"]) for row in log.rows("gap")] == [(12, 13)]
    assert [row["msg_status"] for row in log.rows("refusal")] == ["BAD_SYMBOL"]
    (dictionary,) = log.rows("dictionary")
    assert '"name":"wBidPrice"' in dictionary["detail"]


@pytest.mark.spec("OW31")
def test_a_publisher_that_comes_anew_is_asked_again_and_peers_are_recorded(
    server: NameServer, log: RecordedLog
) -> None:
    with recording(log, url_of(server), symbols="OM.IBM"):
        for run in (1, 2):
            with peer(url_of(server), program=f"feed{run}") as publisher:
                source = Source(MarketDataScript(publisher))
                source.until(lambda run=run: len(log.rows("image")) == run, "the image comes")  # type: ignore[misc]
                source.script.update("IBM")
                source.until(lambda run=run: len(log.rows("message")) == run, "the update comes")  # type: ignore[misc]
        source_events = [(row["cause"], row["detail"]) for row in log.rows("peer")]
    assert [cause for cause, detail in source_events if '"program":"feed1"' in detail] == ["online", "offline"]
    assert log.numbers("OM.IBM", "message", "image") == [0, 1, 0, 1]
    assert not log.rows("gap")


@pytest.mark.spec("OW30", "OW15")
def test_over_zmq_nothing_but_plain_messages_is_sent_to_publishers(log: RecordedLog) -> None:
    data, requests = lasting_port(), lasting_port()
    url = f"zmq://127.0.0.1:{data}?incoming=tcp://127.0.0.1:{requests}"
    bound = f"zmq://127.0.0.1:{data}?bind=true&incoming=tcp://*:{requests}"
    with peer(bound) as publisher, recording(log, url, symbols="OM.IBM"):
        source = Source(MarketDataScript(publisher))
        source.until(lambda: publisher.wanted("OM.IBM") and source.script.requests, "the recorder subscribes")
        source.script.update("IBM")
        source.script.update("IBM", skip=1)
        source.until(lambda: log.numbers("OM.IBM") == [1, 3], "the updates are stored")
    assert {kind for _, kind in source.script.requests} == {FrameType.PUBLISH}
    assert [(row["gap_from"], row["gap_to"]) for row in log.rows("gap")] == [(2, 2)]
    assert not log.rows("image", "recap", "dictionary")


def test_messages_wait_while_the_log_takes_nothing_and_the_peer_stays_known(server: NameServer) -> None:
    free = threading.Event()

    class SlowWriter:
        stored, waiting = 0, 0

        def write(self, batch: Any, give_up: Callable[[], bool] = lambda: False) -> bool:
            while not free.wait(0.01):
                if give_up():
                    return False
            self.stored += len(batch)
            return True

        def reconnect(self, give_up: Callable[[], bool] = lambda: False) -> None: ...

        def drain(self, timeout: float) -> bool:
            return True

    writer, stop = SlowWriter(), threading.Event()
    settings = OpenMamaRecorderSettings.of({"url": url_of(server), "topics": "OM.>", "buffer": 100, "report": "off"})
    recorder = Recorder(MamaRecordSource(settings), writer)
    thread = threading.Thread(target=recorder.run, args=(stop.is_set,), daemon=True)
    with peer(url_of(server)) as publisher:
        watched = Watched(publisher)
        thread.start()
        watched.until(lambda: publisher.naming and publisher.naming.peers, "the recorder is there")
        free.set()
        watched.until(lambda: publisher.wanted("OM.A"), "the recorder subscribes")
        free.clear()
        numbers = count(1)

        def published_until_some_wait() -> bool:
            """The first ones may all be in the batch that is being written."""
            assert publisher.publish("OM.A", basic(next(numbers)))
            return recorder.counts.waiting >= 1

        watched.until(published_until_some_wait, "messages wait")
        free.set()
        published = next(numbers) - 1
        watched.until(lambda: writer.stored > published, "all are written, and the peer")
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert recorder.counts.gaps == 0
