"""What only servers of PyTango 9.3.6 do: events without counters, where there is no database, and pipes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.log.records import RecordKind
from mama_spark.tango.types import PipeData
from mama_spark.testing.waiting import until

from tests.support.tango_processes.recorder import RecordedEvent, RecorderLog, RecorderThread, settings
from tests.support.tango_processes.servers import TangoServer

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TangoServer]:
    with TangoServer(tmp_path_factory.mktemp("old"), release=9) as started:
        yield started


@pytest.mark.spec("TG-46")
def test_events_without_counters_are_all_recorded_and_none_looks_lost(log: RecorderLog, server: TangoServer) -> None:
    """Equal values too, and those before and after a restart of the recorder."""
    for first in (100, 200):
        with RecorderThread(log.options, settings(server)):
            log.push_until(server, 1)
            for value in range(first, first + 10):
                server.push("double", float(value))
                server.push("double", float(value))
            until(lambda: log.records(RecordKind.EVENT)[-1].reading == first + 9)  # noqa: B023
            until(lambda: len(_readings(log, first)) == 20)  # noqa: B023
    assert _readings(log, 100) == [float(value) for value in range(100, 110) for _ in range(2)]
    events = log.records(RecordKind.EVENT)
    assert {event.ctr for event in events} == {0}
    assert not log.records(RecordKind.GAP, RecordKind.RESTART)


def _readings(log: RecorderLog, first: int) -> list[float]:
    return [r.reading for r in log.records(RecordKind.EVENT) if first <= r.reading < first + 100]


@pytest.mark.spec("TG-14")
def test_events_of_pipes_are_recorded(log: RecorderLog, server: TangoServer) -> None:
    def values() -> list[float]:
        return [_pipe(r) for r in log.records(RecordKind.EVENT)]

    with RecorderThread(log.options, settings(server, attributes=["numbers"], events=["pipe"])):
        until(lambda: values(), lambda: server.do("push_pipe", value=2.5))
    assert set(values()) == {2.5}
    assert {_pipe(r) for r in log.records(RecordKind.INITIAL)} == {0.0}
    assert all(r.topic.endswith(".numbers.pipe") for r in log.records(RecordKind.EVENT))


def _pipe(record: RecordedEvent) -> float:
    """The number in a blob."""
    event = decode(record.frames)
    assert isinstance(event, Event)
    assert isinstance(event.data, PipeData)
    (element,) = event.data.blob.elements
    assert isinstance(element.content, np.ndarray)
    return float(element.content[0])
