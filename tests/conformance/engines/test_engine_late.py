"""An engine may know only later what became of messages: SYNC waits then, and what it says behind that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import pytest
import zmq
from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome
from mama_spark.services.malamute_broker.engines.engine_handle import (
    CommandDone,
    CreditReturned,
    EngineHandle,
    Report,
    ReportSocket,
)
from mama_spark.services.malamute_broker.engines.simple import SimpleEngine

STORED = (AckRun(StoreOutcome.STORED, 1, 1),)


class LateEngine(SimpleEngine):
    """Knows at the CANCEL of "now" what it was asked before."""

    known = False

    def sync(self, client: Hashable) -> Callable[[], tuple[AckRun, ...] | None]:
        return lambda: STORED if self.known else None

    def cancel(self, client: Hashable) -> None:
        super().cancel(client)
        self.known = client == "now"

    def credit(self, client: Hashable, amount: int | None) -> None:
        """It holds."""

    def idle(self) -> float | None:
        return 0.01


class AskedEngine(LateEngine):
    """Knows it by itself after a while."""

    looks = 0

    def idle(self) -> float | None:
        self.looks += 1
        self.known = self.looks > 5
        return 0.01


class LateEngineSetup:
    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.traffic = ReportSocket(self.context)
        self.made: list[EngineHandle] = []

    def stream(self, engine: type[SimpleEngine]) -> EngineHandle:
        stream = EngineHandle(self.context, b"st", engine)
        self.made.append(stream)
        self.traffic.add(stream)
        assert self.report() == [CommandDone()]
        return stream

    def report(self) -> Report:
        taken = self.traffic.take(60.0)
        assert taken is not None
        return taken[1]


@pytest.fixture
def setup() -> Iterator[LateEngineSetup]:
    setup = LateEngineSetup()
    yield setup
    for stream in setup.made:
        stream.destroy()
    setup.traffic.close()
    setup.context.term()


def test_what_was_said_before_a_late_answer_does_not_wait_and_what_comes_behind_it_does(setup: LateEngineSetup) -> None:
    stream = setup.stream(LateEngine)
    stream.compile("r", b"")
    stream.accept("w", b"", b"1", [])
    stream.sync("w")
    stream.accept("w", b"", b"2", [])
    stream.flush()
    compiled, first = setup.report()
    assert (compiled, first.subject) == (CommandDone(), b"1")  # type: ignore[union-attr]
    stream.accept("w", b"", b"3", [])
    stream.sync("w")
    stream.flush()
    assert setup.traffic.take(0.1) is None
    stream.cancel("now")
    stream.flush()
    late = setup.report()
    assert [one if isinstance(one, CommandDone) else one.subject for one in late] == [  # type: ignore[union-attr]
        CommandDone(runs=STORED), b"2", b"3", CommandDone(runs=STORED), CommandDone(),
    ]  # fmt: skip


def test_an_engine_is_asked_again_while_it_idles(setup: LateEngineSetup) -> None:
    stream = setup.stream(AskedEngine)
    stream.sync("w")
    stream.flush()
    assert setup.report() == [CommandDone(runs=STORED)]


def test_credit_that_is_called_back_does_not_wait(setup: LateEngineSetup) -> None:
    """Other streams wait for it."""
    stream = setup.stream(LateEngine)
    stream.compile("r", b"")
    stream.credit("r", 5)
    stream.sync("w")
    stream.recall("r")
    stream.flush()
    assert setup.report() == [CommandDone(), CreditReturned("r", 5)]
    stream.cancel("now")
    stream.flush()
    assert setup.report() == [CommandDone(runs=STORED), CommandDone()]
