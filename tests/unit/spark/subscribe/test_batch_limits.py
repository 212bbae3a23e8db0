"""The limits of a micro-batch count what matches, where the log can tell, over logs in memory."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds, MatchRange, RecordLog
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLog, MemoryLogs
from mama_spark.spark.subscribe.matching import BatchLimits, matching_records, next_offsets
from mama_spark.spark.subscribe.offsets import Offsets, StreamPosition

RARE, COMMON = "orders.rare", "orders.common"
PACK: dict[str, list[str]] = {"Mama-Pack": ["lines;v=1"], "Mama-Pack-Rows": ["30"]}


class CannotTell(MemoryLog):
    """A log of a server that is too old."""

    def match_range(self, *_: object) -> MatchRange | None:  # type: ignore[override]
        return None


class Logs(MemoryLogs):
    """Several logs, as a bridge of NATS has."""

    def __init__(self, *logs: MemoryLog) -> None:
        self._logs = {log.name: log for log in logs}

    def log(self, name: str) -> MemoryLog:
        return self._logs[name]

    @property
    def bounds(self) -> dict[str, Bounds]:
        return {name: log.bounds() for name, log in self._logs.items()}

    @property
    def start(self) -> Offsets:
        return {name: StreamPosition(1, bounds.identity) for name, bounds in self.bounds.items()}

    def ends(self, limits: BatchLimits, topic: str = RARE) -> list[int]:
        """The first sequence that is not read, of each log."""
        found = next_offsets(self, self.start, self.bounds, [topic], limits, selective=True)
        assert all(position.begin == 1 for position in found.values())
        return [found[name].next for name in self._logs]


def filled(kind: type[MemoryLog], every: int, messages: int, headers: dict[str, list[str]] | None = None) -> MemoryLog:
    """A log in which each ``every``-th message is on the rare topic."""
    log = kind(MemoryBroker.get(uuid4().hex))
    topics = [COMMON if i % every else RARE for i in range(1, messages + 1)]
    log.append(MessageBatch.of(topics, [b"\n".join([b"x"] * 30)] * messages, [headers] * messages))
    return log


@pytest.fixture(scope="module")
def forget() -> Iterator[list[RecordLog]]:
    made: list[RecordLog] = []
    yield made
    for log in made:
        MemoryBroker.forget(log.name)


@pytest.fixture(scope="module")
def rare(forget: list[RecordLog]) -> MemoryLog:
    forget.append(log := filled(MemoryLog, 50, 1_000))
    return log


def test_a_batch_of_a_filtered_read_takes_as_many_records_as_it_may_of_those_that_match(rare: MemoryLog) -> None:
    assert Logs(rare).ends(BatchLimits(10, None)) == [501]
    assert Logs(rare).ends(BatchLimits(100, None)) == [1_001]
    assert Logs(rare).ends(BatchLimits(10, None), "orders.none") == [1_001]
    logs = Logs(rare)
    assert next_offsets(logs, logs.start, logs.bounds, [], BatchLimits(10, None), selective=False)[rare.name].next == 11
    counted = [matching_records(logs, logs.start, logs.bounds, [RARE], most) for most in (5, 20, 21, 1_000)]
    assert counted == [5, 20, 20, 20], "as far as is asked"


def test_rows_of_packs_count_only_where_they_match(forget: list[RecordLog]) -> None:
    forget.append(log := filled(MemoryLog, 50, 200, PACK))
    assert Logs(log).ends(BatchLimits(None, 90)) == [151]
    assert Logs(log).ends(BatchLimits(2, 90)) == [101]
    assert Logs(log).ends(BatchLimits(2, 1)) == [51], "a message of more rows goes alone"
    found = next_offsets(Logs(log), Logs(log).start, Logs(log).bounds, [RARE], BatchLimits(None, 90), selective=True)
    assert found[log.name].rows == 90


def test_streams_share_the_limit_by_what_matches_in_them(rare: MemoryLog, forget: list[RecordLog]) -> None:
    forget.append(few := filled(MemoryLog, 400, 1_000))
    assert Logs(rare, few).ends(BatchLimits(10, None)) == [401, 1_001], "2 of the one, 8 of the other"


def test_where_the_server_cannot_tell_all_records_count(forget: list[RecordLog]) -> None:
    forget.append(log := filled(CannotTell, 50, 100))
    assert Logs(log).ends(BatchLimits(10, None)) == [11]
    assert Logs(log).ends(BatchLimits(None, 10)) == [11]
    assert matching_records(Logs(log), Logs(log).start, Logs(log).bounds, [RARE], 2) is None
