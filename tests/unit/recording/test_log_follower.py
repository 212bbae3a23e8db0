"""What serves a record log reads it in a thread: where it begins, and how it ends."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed
from mama_spark.contracts.record_log import Bounds, RecordLogBridge
from mama_spark.memory.logs import MemoryLogs
from mama_spark.publishing.window.reconnecting import ReconnectingBridge
from mama_spark.recording.log_follower import LogFollower
from mama_spark.recording.log_position import LogPosition, first_position
from mama_spark.testing.waiting import eventually

from tests.support.tables import each

LOG = Bounds(3, 9, "log", 90)
SAVED = LogPosition("log", 5, 50)


@each(
    ("begin", "saved", "wanted"),
    [
        ("saved", SAVED, SAVED),
        ("saved", LogPosition(), LogPosition("log", 2)),
        ("earliest", SAVED, LogPosition("log", 2)),
        ("latest", SAVED, LogPosition("log", 9, 90)),
        ("0", SAVED, LogPosition("log", 0)),
        ("7", SAVED, LogPosition("log", 6)),
        ("99", SAVED, LogPosition("log", 9)),
    ],
)
def test_where_it_begins(begin: str, saved: LogPosition, wanted: LogPosition) -> None:
    assert first_position(begin, saved, LOG, "earliest") == wanted


def test_a_thread_that_failed_ends_who_waits_for_records() -> None:
    class Broken(MemoryLogs):
        def log(self, name: str) -> None:  # type: ignore[override]
            raise ValueError("broken")

    bridge: ReconnectingBridge[RecordLogBridge] = ReconnectingBridge(lambda: Broken("any"), 5.0)
    follower = LogFollower(bridge, "any")
    follower.start(LogPosition())
    try:
        with pytest.raises(BackgroundTaskFailed, match="the thread that reads the log any failed: broken"):
            eventually(lambda: follower.take() is not None, "it fails")
    finally:
        follower.close()
