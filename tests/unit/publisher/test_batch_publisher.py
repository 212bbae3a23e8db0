"""The batch face, against the in-memory bridge with scripted faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import numpy as np
import pytest
from mama_spark.bridges.memory import MemoryBridge, MemoryBroker
from mama_spark.errors import (
    BackgroundTaskFailed,
    BadRow,
    ClientClosed,
    ConfigError,
    NotPublished,
    PublishError,
    Unavailable,
)
from mama_spark.message import MessageBatch
from mama_spark.options.window import RetryPolicy, WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher
from mama_spark.publisher.clock import NEVER, WallClock
from mama_spark.sending.flight import FlightState
from mama_spark.sending.flight_batch import FlightBatch

from tests.support.examples import FULL

RETRY = RetryPolicy.doubling(0.01, 0.05, deadline=60)
POLICY = WindowConfig(256, 128, wait_timeout=30, retry=RETRY)


class PublisherFixture:
    """A broker, an open bridge, a started publisher, and what it finished."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self.broker = MemoryBroker.get(self.name)
        self.finished: list[FlightBatch] = []
        self.tags: list[object] = []
        self.publishers: list[BatchPublisher] = []

    def on_finished(self, block: FlightBatch) -> None:
        assert block.open == 0
        self.finished.append(block)
        self.tags.append(block.tag.tag)

    def publisher(self, policy: WindowConfig = POLICY, **more: object) -> BatchPublisher:
        bridge = more.pop("bridge", None) or MemoryBridge(self.name)
        bridge.open()  # type: ignore[attr-defined]
        options: dict[str, object] = {"on_finished": self.on_finished, **more}
        publisher = BatchPublisher(bridge, policy, **options)  # type: ignore[arg-type]
        publisher.start()
        self.publishers.append(publisher)
        return publisher


@pytest.fixture
def desk() -> Iterator[PublisherFixture]:
    desk = PublisherFixture()
    yield desk
    for publisher in desk.publishers:
        publisher.stop()
    MemoryBroker.forget(desk.name)


def batch(n: int, start: int = 0) -> MessageBatch:
    rows = range(start, start + n)
    return MessageBatch.of(["t.x"] * n, [b"%d" % i for i in rows], None, [f"id{i}" for i in rows])


def conserved(publisher: BatchPublisher) -> bool:
    c = publisher.counters
    return c.opened == c.acked + c.failed + c.timed_out + c.published


def test_every_row_of_every_batch_is_acked_and_stored_in_order(desk: PublisherFixture) -> None:
    publisher = desk.publisher()
    for i in range(5):
        publisher.put(batch(3000, i * 3000), tag=i)
    publisher.drain()
    assert desk.tags == [0, 1, 2, 3, 4]
    assert [int(m.payload) for m in desk.broker.messages()] == list(range(15_000))
    assert publisher.counters.acked == 15_000
    assert all((b.state == FlightState.ACKED).all() and b.tag is None for b in desk.finished)
    assert (np.diff(np.concatenate([b.sequence for b in desk.finished])) == 1).all()
    assert repr(publisher) == "<BatchPublisher drained, 0 in flight>"


def test_any_mix_of_faults_conserves_every_row(desk: PublisherFixture) -> None:
    rng = np.random.default_rng(3)
    words = ["ack", "lose", "drop", "503", "429", "409", "dup", "unknown", "disconnect", "reject", "full"]
    desk.broker.then(rng.choice(words, 600 if FULL else 200, p=[0.5, *[0.05] * 10]).tolist())
    publisher = desk.publisher(WindowConfig(64, 16, wait_timeout=0.1, retry=RETRY))
    for i in range(4):
        publisher.put(batch(500, i * 500), tag=i)
    publisher.drain()
    assert conserved(publisher)
    stored = {int(m.payload) for m in desk.broker.messages()}
    assert len(stored) == len(desk.broker.messages()), "ids deduplicate resends"
    for tag, block in zip(desk.tags, desk.finished, strict=True):
        assert isinstance(tag, int)
        assert set((np.flatnonzero(block.state == FlightState.ACKED) + tag * 500).tolist()) <= stored
        assert set(block.state.tolist()) <= {int(FlightState.ACKED), int(FlightState.COMPLETED_EXCEPTIONALLY)}


def test_bad_rows_fail_without_being_sent_and_the_others_go(desk: PublisherFixture) -> None:
    publisher = desk.publisher()
    rows = MessageBatch.of(["t", "t", "a.*", "t", "t"], [b"0", b"1", b"2", b"3", b"4"])
    block = publisher.put(rows, bad=[(0, BadRow("mine")), (3, BadRow("mine, too"))])
    publisher.drain()
    bad, ok = int(FlightState.COMPLETED_EXCEPTIONALLY), int(FlightState.ACKED)
    assert block.state.tolist() == [bad, ok, bad, bad, ok]
    assert block.errors[0].info == "mine"
    assert block.errors[2].status == "BAD_SYMBOL"
    assert block.sends.tolist() == [0, 1, 0, 0, 1]
    assert [m.payload for m in desk.broker.messages()] == [b"1", b"4"]


def test_batches_without_a_row_to_send_are_finished_too(desk: PublisherFixture) -> None:
    publisher = desk.publisher()
    publisher.put(batch(0), tag="empty")
    publisher.put(batch(1), bad=[(0, BadRow("no"))], tag="bad")
    publisher.drain()
    assert sorted(map(str, desk.tags)) == ["bad", "empty"]


def test_settling_goes_on_while_the_caller_puts_nothing(desk: PublisherFixture) -> None:
    desk.broker.then(["lose", "drop", "503"])
    done = threading.Event()
    publisher = desk.publisher(
        WindowConfig(50, 0, wait_timeout=0.05, retry=RETRY), on_finished=lambda block: done.set()
    )
    block = publisher.put(batch(3))
    assert done.wait(60), "no put, no drain: the pump's thread alone resends"
    assert (block.state == FlightState.ACKED).all()


def test_a_row_without_retry_times_out_and_the_late_answer_changes_nothing(desk: PublisherFixture) -> None:
    desk.broker.then(["late"])
    publisher = desk.publisher(WindowConfig(wait_timeout=0.05))
    block = publisher.put(batch(1))
    publisher.drain()
    assert block.state.tolist() == [int(FlightState.TIMEOUT)]
    assert block.doubt.tolist() == [True]
    assert desk.broker.release() == 1


def test_put_blocks_while_two_batches_wait(desk: PublisherFixture) -> None:
    desk.broker.then(["late"])
    publisher = desk.publisher(WindowConfig(1, 0, wait_timeout=60))
    publisher.put(batch(1))
    until = time.monotonic() + 60
    while not desk.broker._late and time.monotonic() < until:
        time.sleep(0.001)
    returned: list[int] = []

    def put_three() -> None:
        for i in range(3):
            publisher.put(batch(5, 10 + i * 10))
            returned.append(i)

    caller = threading.Thread(target=put_three)
    caller.start()
    while len(returned) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    caller.join(0.5)
    assert returned == [0, 1], "the window is full, two batches wait: the third put must not return"
    desk.broker.release()
    caller.join(60)
    assert returned == [0, 1, 2], "and does when one of them went"
    publisher.drain()
    assert publisher.counters.acked == 16


def test_stop_settles_everything_and_later_puts_raise(desk: PublisherFixture) -> None:
    desk.broker.then(["lose"] * 4)
    publisher = desk.publisher(WindowConfig(4, 0, wait_timeout=60))
    block = publisher.put(batch(10))
    until = time.monotonic() + 60
    while publisher.counters.sends < 4 and time.monotonic() < until:
        time.sleep(0.001)
    publisher.stop()
    publisher.stop()
    assert (block.state == FlightState.COMPLETED_EXCEPTIONALLY).all()
    assert block.doubt.tolist() == [True] * 4 + [False] * 6
    assert isinstance(block.errors[9], NotPublished)
    assert desk.finished == [block]
    assert conserved(publisher)
    with pytest.raises(ClientClosed):
        publisher.put(batch(1))


def test_a_closed_connection_ends_the_pump_settles_all_and_tells_every_waiter(desk: PublisherFixture) -> None:
    desk.broker.then(["ack", "lose", "kill"])
    publisher = desk.publisher()
    block = publisher.put(batch(5))
    with pytest.raises(BackgroundTaskFailed) as caught:
        publisher.drain()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert block.open == 0
    assert desk.finished == [block]
    with pytest.raises(BackgroundTaskFailed):
        publisher.put(batch(1))
    assert "dead" in repr(publisher)


def test_an_error_in_on_finished_ends_the_pump(desk: PublisherFixture) -> None:
    def broken(block: FlightBatch) -> None:
        raise OSError("disk full")

    publisher = desk.publisher(on_finished=broken)
    publisher.put(batch(1))
    with pytest.raises(BackgroundTaskFailed, match="disk full"):
        publisher.drain()


def test_a_config_error_of_prepare_comes_out_as_itself(desk: PublisherFixture) -> None:
    class Homeless(MemoryBridge):
        def prepare(self, batch: MessageBatch) -> object:  # type: ignore[override]
            raise ConfigError("no stream takes t.x")

    publisher = desk.publisher(bridge=Homeless(desk.name))
    block = publisher.put(batch(3))
    with pytest.raises(ConfigError, match="no stream takes"):
        publisher.drain()
    assert (block.state == FlightState.COMPLETED_EXCEPTIONALLY).all()


def test_an_outage_that_outlasts_the_patience_ends_the_pump_as_unavailable(desk: PublisherFixture) -> None:
    desk.broker.then(["503"] * 5000)
    publisher = desk.publisher(WindowConfig(64, 0, retry=RetryPolicy(None, (0.01,), 0.2)), patience=0.3)
    publisher.put(batch(5000))
    with pytest.raises(BackgroundTaskFailed, match="nothing was acknowledged") as caught:
        publisher.drain()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert conserved(publisher)


def test_a_broker_that_is_down_leaves_no_one_waiting(desk: PublisherFixture) -> None:
    publisher = desk.publisher(patience=0.1)
    desk.broker.up = False
    publisher.put(batch(5))
    with pytest.raises(BackgroundTaskFailed, match="takes no messages"):
        publisher.drain()


def test_without_acknowledgements_published_is_terminal(desk: PublisherFixture) -> None:
    publisher = desk.publisher(bridge=MemoryBridge(desk.name, acks=False))
    block = publisher.put(batch(5000))
    publisher.drain()
    assert (block.state == FlightState.PUBLISHED).all()
    assert publisher.counters.published == 5000
    assert len(desk.broker.messages()) == 5000


def test_rate_limits_new_messages(desk: PublisherFixture) -> None:
    publisher = desk.publisher(rate=1000)
    began = time.monotonic()
    publisher.put(batch(400))
    publisher.drain()
    assert time.monotonic() - began >= 0.29, "a burst of 100, then 300 at 1000/s"


def test_chunks_are_bounded_in_messages_and_bytes(desk: PublisherFixture) -> None:
    calls: list[tuple[int, int]] = []

    class Counting(MemoryBridge):
        def send(self, batch: MessageBatch, first_token: int) -> int:
            calls.append((len(batch), int(batch.sizes().sum())))
            return super().send(batch, first_token)

    publisher = desk.publisher(WindowConfig(10_000, 0), bridge=Counting(desk.name, max_payload=8 << 20))
    publisher.put(batch(9000))
    publisher.put(MessageBatch.of(["t"] * 5, [bytes(n) for n in (1, 6 << 20, 2_400_000, 2_400_000, 7)]))
    publisher.drain()
    assert max(n for n, _ in calls) == 2048
    assert [c for c in calls if c[1] > 4 << 20] == [(1, 6 << 20)]


def test_drain_without_start_raises_instead_of_waiting() -> None:
    publisher = BatchPublisher(MemoryBridge(uuid4().hex), POLICY, on_finished=lambda b: None)
    with pytest.raises(ClientClosed):
        publisher.drain()
    publisher.stop()


def test_wall_clock_keeps_differences_when_the_clock_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock.anchored()
    now = time.monotonic()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    one, two, never = clock.micros(np.array([now, now + 1.5, np.nan])).tolist()
    assert two - one == 1_500_000
    assert never == NEVER


def test_errors_of_a_flight_are_publish_errors(desk: PublisherFixture) -> None:
    desk.broker.then(["reject"])
    publisher = desk.publisher()
    block = publisher.put(batch(2))
    publisher.drain()
    assert isinstance(block.errors[0], PublishError)
    assert block.state.tolist() == [int(FlightState.COMPLETED_EXCEPTIONALLY), int(FlightState.ACKED)]
