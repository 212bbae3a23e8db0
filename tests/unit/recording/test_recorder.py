"""Recorders say how far they have come, also while their log takes nothing, and what servers refuse."""

from __future__ import annotations

import time
from collections.abc import Callable

from mama_spark.contracts.message import MessageBatch
from mama_spark.openmama.recorder.record_source import MamaRecordSource
from mama_spark.openmama.recorder.settings import OpenMamaRecorderSettings
from mama_spark.recording.recorder import Recorder
from mama_spark.tango.recorder.record_source import TangoRecordSource
from mama_spark.tango.recorder.settings import TangoRecorderSettings
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.testing.waiting import TIMEOUT

from tests.support.ports import lasting_port


class Log:
    """Takes all or, while it is away, nothing."""

    stored = waiting = 0

    def __init__(self, away: bool) -> None:
        self._away = away

    def write(self, batch: MessageBatch, give_up: Callable[[], bool] = lambda: False) -> bool:
        while self._away and not give_up():
            time.sleep(0.001)
        return not self._away

    def reconnect(self, give_up: Callable[[], bool] = lambda: False) -> None: ...

    def drain(self, timeout: float) -> bool:
        return not self._away


def until(seen: Callable[[], bool]) -> Callable[[], bool]:
    late = time.monotonic() + TIMEOUT
    return lambda: seen() or time.monotonic() > late


def test_lines_of_progress_go_on_while_the_log_takes_nothing() -> None:
    said = list[str]()
    given = {"url": f"zmq://127.0.0.1:{lasting_port()}", "topics": "OM.A", "report": "10ms", "drain": "10ms"}
    recorder = Recorder(MamaRecordSource(OpenMamaRecorderSettings.of(given)), Log(away=True))
    assert not recorder.run(until(lambda: len(said) > 2), said.append)
    assert sum("0 stored" in line for line in said) >= 2, said


def test_subscriptions_that_the_server_refuses_are_counted_until_it_takes_them() -> None:
    attributes = [Attribute("good"), Attribute("silent", change=None), Attribute("later", change=None)]
    said, told = list[str](), list[str]()

    def seen() -> bool:
        counted = said[-1].partition(" by servers")[0] if said else ""
        if counted == "4 subscriptions, 3 of them refused" and not told:
            told.append(counted)
            source.add_attributes("a/b/1", [Attribute("later")], replace=True)
        return bool(told) and counted == "4 subscriptions, 2 of them refused"

    with TangoEventSource([Device("a/b/1", attributes)]) as source:
        url, names = source.address("").replace("/#", "#"), ["good", "silent", "later", "none"]
        given = {"url": url, "devices": ["a/b/1"], "attributes": names, "events": ["change"], "report": "10ms"}
        recorder = Recorder(TangoRecordSource(TangoRecorderSettings.of(given)), Log(away=False))
        assert recorder.run(until(seen), said.append)
    assert seen(), said[-1]
