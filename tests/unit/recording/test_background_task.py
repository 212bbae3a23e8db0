"""A thread whose failure ends what relies on it."""

from __future__ import annotations

import threading

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed, Unavailable
from mama_spark.recording.background_task import BackgroundTask
from mama_spark.testing.waiting import eventually

from tests.support.tables import each


@each(
    ("error", "said"),
    [(Unavailable("away"), Unavailable), (KeyError("x"), BackgroundTaskFailed), (SystemExit(1), BackgroundTaskFailed)],
)
def test_what_it_ended_with_is_said(error: BaseException, said: type[Exception]) -> None:
    def fail() -> None:
        raise error

    task = BackgroundTask("t", "fails", fail)
    task.start()
    eventually(lambda: not task.running, "it ends")
    with pytest.raises(said):
        task.check()


def test_who_stops_it_again_does_not_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    end, waits = threading.Event(), list[float | None]()
    task = BackgroundTask("t", "hangs", lambda: print(end.wait()), patience=7.0)
    task.start()
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout=None: waits.append(timeout))
    task.stop()
    task.stop()
    monkeypatch.undo()
    end.set()
    assert waits == [7.0, 0.0]
