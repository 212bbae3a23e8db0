"""A log that an older copy was restored of, and that grew again: whoever follows it says so, and reads what is new."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from mama_spark.cli.commands import sub
from mama_spark.contracts.errors import OptionError
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Continuity, RecordLogBridge, resume
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.openmama.discovery import RecordedPeers
from mama_spark.options import SubscribeOptions
from mama_spark.publishing.window.reconnecting import ReconnectingBridge
from mama_spark.recording.log_follower import LogFollower
from mama_spark.recording.log_position import LogPosition
from mama_spark.testing.waiting import eventually

#: Messages that were there, that are left, and that are there when the log is looked at again.
READ, LEFT = 9, 5
GROWN = (7, 9, 12)


class Log:
    def __init__(self) -> None:
        self.name = uuid4().hex
        self.broker = MemoryBroker.get(self.name)
        self.bridge: ReconnectingBridge[RecordLogBridge] = ReconnectingBridge(lambda: MemoryLogs(self.name), 5.0)
        self.grow(READ)

    @property
    def log(self) -> Any:
        return MemoryLogs(self.name).log(self.name)

    def grow(self, last: int) -> None:
        n = last - self.broker.last()
        self.log.append(MessageBatch.of(["a"] * n, [b"%d" % i for i in range(n)]))

    def restore(self, grown: int) -> None:
        self.broker.restore(LEFT)
        self.grow(grown)


@pytest.fixture(params=GROWN)
def grown(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def one() -> Iterator[Log]:
    made = Log()
    yield made
    MemoryBroker.forget(made.name)


def test_where_a_reader_goes_on(one: Log, grown: int) -> None:
    time = one.broker.messages()[-1].time
    identity = one.broker.identity
    assert resume(lambda: one.log, one.log.bounds(), identity, READ + 1, time) == (Continuity.UNBROKEN, READ + 1)
    one.restore(grown)
    bounds = one.log.bounds()
    shorter = grown < READ
    unseen = (Continuity.SHORTER, grown + 1) if shorter else (Continuity.UNBROKEN, READ + 1)
    assert resume(lambda: one.log, bounds, identity, READ + 1, None) == unseen
    back = Continuity.SHORTER if shorter else Continuity.REWRITTEN
    assert resume(lambda: one.log, bounds, identity, READ + 1, time) == (back, LEFT + 1)
    assert resume(lambda: one.log, bounds, "another", READ + 1, time) == (Continuity.RECREATED, 1)


@pytest.mark.parametrize("running", [True, False])
def test_what_serves_a_log(one: Log, grown: int, running: bool) -> None:
    begin = LogPosition(one.broker.identity, *(() if running else (READ, one.broker.messages()[-1].time)))
    follower = LogFollower(one.bridge, one.name)
    taken: list[Any] = []

    def sequences() -> list[int]:
        while (batch := follower.take()) is not None:
            taken.append(batch)
        return [int(n) for batch in taken if batch.records is not None for n in batch.records.sequences]

    try:
        if running:
            follower.start(begin)
            eventually(lambda: sequences() == list(range(1, READ + 1)), "it reads what is there")
        one.restore(grown)
        if not running:
            follower.start(begin)
        new = list(range(LEFT + 1, one.broker.last() + 1))
        eventually(lambda: sequences()[READ if running else 0 :] == new, "it reads what is new")
        assert any("restored from an older copy" in batch.warning for batch in taken)
    finally:
        follower.close()


def test_discovery_that_was_recorded_says_that_it_lost_its_place(one: Log) -> None:
    discovery = RecordedPeers(MemoryLogs(one.name), None)
    start = discovery.latest_offset(discovery.initial_offset("earliest"))
    one.restore(READ - 1)
    lost = [event.info for some in discovery.read(start, discovery.latest_offset(start)) for event in some]
    assert lost == ["the log was deleted and created again, or restored from an older copy"]


SHOW = SubscribeOptions.parse({"url": "memory://log", "topics": ">"})


def begun(one: Log, where: str) -> dict[str, LogPosition]:
    return sub.begin(MemoryLogs(one.name), replace(SHOW, stream=one.name), where)


def test_the_command_that_shows_messages(one: Log, grown: int, capsys: pytest.CaptureFixture[str]) -> None:
    shown = begun(one, "now")
    one.restore(grown)
    rows = [row["sequence"] for row in sub.new_rows(MemoryLogs(one.name), SHOW, shown)]
    assert (rows, shown[one.name].served) == (list(range(LEFT + 1, grown + 1)), grown)
    assert "(restored from an older copy?): going on at 6" in capsys.readouterr().err


def test_the_command_goes_on_behind_what_is_there_where_it_does_not_know_what_it_has_shown(one: Log) -> None:
    shown = begun(one, str(READ + 1))
    one.restore(READ - 2)
    assert list(sub.new_rows(MemoryLogs(one.name), SHOW, shown)) == []
    assert shown[one.name].served == READ - 2


def test_a_sequence_that_is_yet_to_come_is_no_log_that_went_back(one: Log) -> None:
    assert begun(one, str(READ + 1))[one.name].served == READ
    with pytest.raises(OptionError, match=f"--from {READ + 2}: {one.name} ends at {READ}"):
        begun(one, str(READ + 2))


def test_the_command_says_what_was_removed_before_it_was_shown(one: Log, capsys: pytest.CaptureFixture[str]) -> None:
    shown = begun(one, "1")
    one.broker.delete(range(1, LEFT))
    assert [row["sequence"] for row in sub.new_rows(MemoryLogs(one.name), SHOW, shown)] == list(range(LEFT, READ + 1))
    assert capsys.readouterr().err == f"mama: records 1 to {LEFT - 1} are gone from the log {one.name}\n"
