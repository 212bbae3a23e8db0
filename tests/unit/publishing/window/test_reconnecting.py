"""How long a call waits for a middleware that is away, and which errors it does not wait for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from mama_spark.cli.commands import sub
from mama_spark.cli.main import main
from mama_spark.contracts.backoff import RECONNECT
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.memory import MemoryBroker, logs
from mama_spark.memory.logs import MemoryLog, MemoryLogs
from mama_spark.publishing.window.outage_timer import OutageTimer
from mama_spark.publishing.window.reconnecting import ReconnectingBridge
from mama_spark.recording.log_follower import LogFollower
from mama_spark.recording.log_position import LogPosition
from mama_spark.testing.waiting import eventually

from tests.support.tables import each


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Openable:
    """Refuses to open as often as ``failures`` says."""

    failures = 0

    def __init__(self) -> None:
        self.closed = 0

    def open(self) -> None:
        if Openable.failures:
            Openable.failures -= 1
            raise Unavailable("away")

    def close(self) -> None:
        self.closed += 1


def test_an_outage_is_limited_from_the_last_success_on() -> None:
    clock = Clock()
    outage = OutageTimer(1.0, clock=clock, sleep=clock.sleep)
    error = Unavailable("away")
    for _ in range(2):
        clock.slept.clear()
        for _ in range(3):
            outage.wait(error)
        with pytest.raises(Unavailable) as raised:
            outage.wait(error)
        assert raised.value is error
        assert clock.slept == [RECONNECT.delay(n) for n in range(3)]
        outage.succeeded()


@pytest.fixture
def frail(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Clock]]:
    """A log of three records: each read of it ends after one, for which it took long, in an outage."""
    clock, read, name = Clock(), MemoryLog.read, uuid4().hex

    def read_one(self: MemoryLog, *given: Any) -> Iterator[Records]:
        clock.now += 10.0
        yield next(read(self, *given))
        raise Unavailable("away")

    MemoryLogs(name).log(name).append(MessageBatch.of(["t"] * 3, [b"x"] * 3))
    monkeypatch.setattr(logs, "_ROWS", 1)
    monkeypatch.setattr(MemoryLog, "read", read_one)
    yield name, clock
    MemoryBroker.forget(name)


def test_outages_of_one_read_that_comes_on_are_several(frail: tuple[str, Clock]) -> None:
    name, clock = frail
    follower = LogFollower(ReconnectingBridge(lambda: MemoryLogs(name), 5.0, clock=clock, sleep=clock.sleep), name)
    follower.start(LogPosition(MemoryBroker.get(name).identity))
    taken = [eventually(follower.take, "the next record") for _ in range(3)]
    follower.close()
    assert [batch.at.served for batch in taken] == [1, 2, 3]


def test_outages_while_messages_are_shown_are_several(
    frail: tuple[str, Clock], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, clock = frail
    monkeypatch.setattr(sub, "ReconnectingBridge", partial(ReconnectingBridge, clock=clock, sleep=clock.sleep))
    words = ["--from", "earliest", "--count", "3", "--url", f"memory://{name}", "-o", "waitTimeout=5s"]
    assert main(["sub", "t", *words]) == 0
    assert capsys.readouterr().out == "1 t x\n2 t x\n3 t x\n"


def test_a_final_error_is_raised_without_a_wait() -> None:
    clock = Clock()
    outage = OutageTimer(1.0, clock=clock, sleep=clock.sleep)
    with pytest.raises(ConfigError):
        outage.wait(ConfigError("no such stream"))
    assert clock.slept == []


@each(("failures", "timeout", "works"), [(0, 0.0, True), (3, 1.0, True), (4, 1.0, False)])
def test_a_bridge_is_made_anew_until_it_opens_or_the_time_is_over(failures: int, timeout: float, works: bool) -> None:
    clock, made = Clock(), list[Openable]()

    def make() -> Openable:
        made.append(Openable())
        return made[-1]

    Openable.failures = failures
    bridge = ReconnectingBridge(make, 60.0, clock=clock, sleep=clock.sleep)
    if works:
        assert bridge.call(lambda opened: opened, timeout) is made[-1]
        assert len(made) == failures + 1
        assert bridge.call(lambda opened: opened) is made[-1]
        bridge.close()
    else:
        with pytest.raises(Unavailable):
            bridge.call(lambda opened: opened, timeout)
    assert [one.closed for one in made] == [1] * len(made)
