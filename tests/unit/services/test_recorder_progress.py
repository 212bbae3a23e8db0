"""Recorders say how far they have come, also while their log takes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from mama_spark.message import MessageBatch
from mama_spark.services.openmama_recorder.recorder import OpenMamaRecorder
from mama_spark.services.openmama_recorder.settings import OpenMamaRecorderSettings
from mama_spark.services.tango_recorder.recorder import Recorder
from mama_spark.services.tango_recorder.settings import RecorderSettings

from tests.support.ports import lasting_port


class LogThatIsAway:
    stored = waiting = 0

    def write(self, batch: MessageBatch, give_up: Callable[[], bool] = lambda: False) -> bool:
        while not give_up():
            time.sleep(0.001)
        return False

    def drain(self, timeout: float) -> bool:
        return False


@pytest.mark.parametrize("network", ["tango", "openmama"])
def test_lines_of_progress_go_on_while_the_log_takes_nothing(network: str) -> None:
    address, said = f"127.0.0.1:{lasting_port()}", list[str]()
    times = {"report": "10ms", "drain": "10ms"}
    recorder: Recorder | OpenMamaRecorder
    if network == "tango":
        given = {"url": f"tango://{address}#dbase=no", "devices": ["a/b/1"], "attributes": ["x"], **times}
        recorder = Recorder(RecorderSettings.of(given), LogThatIsAway())
    else:
        given = {"url": f"zmq://{address}", "topics": "OM.A", **times}
        recorder = OpenMamaRecorder(OpenMamaRecorderSettings.of(given), LogThatIsAway())
    until = time.monotonic() + 10
    assert not recorder.run(lambda: len(said) > 2 or time.monotonic() > until, said.append)
    assert sum("0 stored" in line for line in said) >= 2, said
