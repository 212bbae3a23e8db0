"""Streams that share threads: each is an actor as one with a thread of its own, and none makes the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import zmq
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.engines import Delivery
from mama_spark.malamute.broker.engines.base import shared_threads
from mama_spark.malamute.broker.engines.commands import CommandDone, EngineFailed, Report
from mama_spark.malamute.broker.engines.engine_threads import EngineThreads, ReportSocket
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.testing.driven_stream import DrivenStream
from mama_spark.testing.waiting import eventually

TIMEOUT = 60.0
MOST = 3


class SharingEngine(SimpleEngine):
    """Does what the subjects of its messages say, and notes if two threads are in it at a time."""

    shared_threads: ClassVar[int] = MOST
    gate: ClassVar[threading.Event]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.inside = threading.Lock()
        self.idles = 0

    def start(self) -> None:
        if self.name.startswith(b"slow"):
            assert self.gate.wait(TIMEOUT)
        if self.name.startswith(b"broken"):
            raise ConfigError("cannot start")

    def accept(self, client: Any, address: bytes, subject: bytes, content: Any, extension: Any = None) -> None:
        assert self.inside.acquire(blocking=False), "one command after another"
        if subject == b"wait":
            assert self.gate.wait(TIMEOUT)
        if subject == b"fail":
            raise OSError("disk full")
        super().accept(client, address, subject, content, extension)
        self.inside.release()


class TickingEngine(SharingEngine):
    """Delivers by itself, a few times."""

    shared_threads: ClassVar[int] = MOST

    def idle(self) -> float | None:
        assert self.inside.acquire(blocking=False)
        for client in self._patterns:
            self.idles += 1
            self.deliver(Delivery(client, b"", b"%d" % self.idles, []))
        self.inside.release()
        return 0.001 if self.idles < 20 else None


class Streams:
    """Streams that share threads, and their reports."""

    def __init__(self, most: int = MOST) -> None:
        SharingEngine.gate = threading.Event()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.reports = ReportSocket(self.context)
        self.threads = EngineThreads(self.context, "sharing", most)
        self.made: list[DrivenStream] = []
        self.found: dict[object, Report] = {}

    def open(self, name: bytes, cls: type[SimpleEngine] = SharingEngine, traffic: bool = True) -> DrivenStream:
        stream = DrivenStream(self.context, name, cls, None, self.threads)
        self.made.append(stream)
        if traffic:
            self.reports.add(stream)
        return stream

    def publish(self, stream: DrivenStream, *subjects: bytes) -> None:
        """A batch for each."""
        for subject in subjects:
            stream.accept("writer", b"", subject, [])
            stream.flush()

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            taken = self.reports.take(TIMEOUT)
            assert taken is not None, self.found
            self.found.setdefault(taken[0], []).extend(taken[1])

    def subjects(self, stream: DrivenStream) -> list[bytes]:
        return [one.subject for one in self.found.get(stream, ()) if isinstance(one, Delivery)]

    def answers(self, stream: DrivenStream) -> int:
        return sum(isinstance(one, CommandDone) for one in self.found.get(stream, ()))

    def read(self, *streams: DrivenStream) -> None:
        for stream in streams:
            stream.compile("reader", b"")
            stream.flush()
        self.until(lambda: all(self.answers(stream) == 2 for stream in streams))

    def names(self) -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.startswith("sharing-")]

    def close(self) -> None:
        SharingEngine.gate.set()
        for stream in self.made:
            stream.destroy(TIMEOUT)
            assert stream.ended
        self.threads.close(TIMEOUT)
        assert not self.names()
        self.reports.close()
        self.context.term()


@pytest.fixture
def streams() -> Iterator[Streams]:
    made = Streams()
    yield made
    made.close()


@pytest.mark.spec("ML-04", "ML-05", "ML-08")
def test_streams_that_share_threads_execute_their_commands_in_order_and_one_after_another(streams: Streams) -> None:
    many = [streams.open(b"%d" % n) for n in range(20)]
    streams.read(*many)
    wanted = [b"%d" % n for n in range(50)]
    for subject in wanted:
        for stream in many:
            streams.publish(stream, subject)
    streams.until(lambda: all(len(streams.subjects(stream)) == len(wanted) for stream in many))
    assert all(streams.subjects(stream) == wanted for stream in many)
    assert len(streams.names()) <= MOST


def test_an_engine_that_waits_does_not_hold_up_the_others(streams: Streams) -> None:
    """While it starts, and while it works; there is another thread."""
    slow, waiting = streams.open(b"slow"), streams.open(b"waiting")
    streams.read(waiting)
    streams.publish(waiting, b"wait", b"after")
    others = [streams.open(b"%d" % n) for n in range(5)]
    streams.read(*others)
    for stream in others:
        streams.publish(stream, b"x")
    streams.until(lambda: all(streams.subjects(stream) == [b"x"] for stream in others))
    assert not streams.found.get(slow)
    SharingEngine.gate.set()
    streams.until(lambda: streams.subjects(waiting) == [b"wait", b"after"] and streams.answers(slow) == 1)


def test_streams_have_their_turns_one_after_another_whatever_waits_for_one_of_them() -> None:
    streams = Streams(most=1)
    first, busy, other = (streams.open(name) for name in (b"first", b"busy", b"other"))
    streams.read(first, busy, other)
    streams.publish(first, b"wait")
    streams.publish(busy, *[b"%d" % n for n in range(100)])
    streams.publish(other, b"x")
    SharingEngine.gate.set()
    streams.until(lambda: bool(streams.subjects(other)))
    assert len(streams.subjects(busy)) <= 2, "its other batches come behind"
    streams.until(lambda: len(streams.subjects(busy)) == 100)
    streams.close()


def test_an_engine_that_fails_ends_its_own_stream(streams: Streams) -> None:
    failing, sound = streams.open(b"failing"), streams.open(b"sound")
    streams.read(failing, sound)
    streams.publish(failing, b"fail", b"lost")
    streams.until(lambda: isinstance(streams.found[failing][-1], EngineFailed))
    assert isinstance(failing.actor.error, OSError)
    eventually(lambda: failing.ended, "it has ended")
    failing.destroy(0.0)
    assert failing.closed
    streams.publish(sound, b"x")
    streams.until(lambda: streams.subjects(sound) == [b"x"])


def test_an_engine_that_fails_before_anybody_listens_says_so_to_whom_traffic_names(streams: Streams) -> None:
    early, never = streams.open(b"broken", traffic=False), streams.open(b"broken 2", traffic=False)
    eventually(lambda: early.actor.error is not None and never.actor.error is not None, "both have failed")
    assert not early.ended
    streams.reports.add(early)
    streams.until(lambda: [type(one) for one in streams.found.get(early, ())] == [EngineFailed])
    never.destroy(TIMEOUT)
    assert never.ended


def test_background_work_goes_on_by_itself_and_between_commands(streams: Streams) -> None:
    ticking, waiting, busy = (streams.open(name, TickingEngine) for name in (b"ticking", b"waiting", b"busy"))
    for stream in (ticking, waiting, busy):
        stream.compile("reader", b"")
        stream.flush()
    streams.publish(waiting, b"wait")
    streams.publish(busy, *[b"x"] * 50)
    ticks = [b"%d" % n for n in range(1, 21)]
    streams.until(lambda: streams.subjects(ticking) == ticks and len(streams.subjects(busy)) == 70)
    SharingEngine.gate.set()
    streams.until(lambda: streams.subjects(waiting)[-1:] == [b"20"])
    assert len(streams.names()) <= MOST + 1, "and a clock"


def test_an_engine_shares_threads_only_if_it_says_so_itself() -> None:
    class Derived(SharingEngine):
        """It may do anything."""

    assert (shared_threads(SharingEngine), shared_threads(Derived)) == (MOST, 0)
