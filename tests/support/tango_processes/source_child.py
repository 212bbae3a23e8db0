"""An event source in a process of its own, so that tests can kill it and stop it; run as a program by
:class:`tests.support.tango_processes.source_process.SourceProcess`. JSON lines as in
:mod:`tests.support.tango_processes.child`, without PyTango."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import EventType


def _answer(source: TangoEventSource, device: str, request: dict[str, Any]) -> int:
    """Messages sent."""
    if request["do"] == "push":
        return source.push_event(EventType.CHANGE, device, request["attribute"], request["value"])
    assert request["do"] == "burst"
    values = range(request["first"], request["first"] + request["count"])
    return sum(source.push_event(EventType.CHANGE, device, request["attribute"], value) for value in values)


def main() -> None:
    given = json.loads(sys.argv[1])
    device = Device(given["device"], [Attribute(name) for name in given["attributes"]])
    source = TangoEventSource([device], SourceSettings("127.0.0.1", given["port"], **given["settings"]))
    for name in given["attributes"]:
        source.set(device.name, name, 0.0)
    with source:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer: dict[str, Any] = {"result": _answer(source, device.name, request)}
            except Exception as error:  # noqa: BLE001 - told to the test, with its name
                answer = {"broken": f"{type(error).__name__}: {error}"}
            print(json.dumps({"id": request["id"], **answer}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
