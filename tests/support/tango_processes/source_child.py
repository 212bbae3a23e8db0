"""An event source in a process of its own, so that tests can kill it and stop it; run as a program by
:class:`tests.support.tango_processes.source_process.SourceProcess`. JSON lines as in
    :mod:`tests.support.tango_processes.child`, without
PyTango."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import EVENT_NAMES, EventType, Quality


def _answer(source: TangoEventSource, device: str, request: dict[str, Any]) -> Any:
    do, attribute = request["do"], request.get("attribute", "")
    if do == "push":
        event = EVENT_NAMES[request.get("event", "change")]
        quality = Quality[request.get("quality", "VALID")]
        return source.push_event(event, device, attribute, request["value"], quality=quality)
    if do == "set":
        return source.set(device, attribute, request["value"])
    if do == "burst":
        begin = time.monotonic()
        for value in range(request["first"], request["first"] + request["count"]):
            source.push_event(EventType.CHANGE, device, attribute, value)
        return time.monotonic() - begin
    raise ValueError(do)


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
                answer = {"result": _answer(source, device.name, request)}
            except Exception as error:  # noqa: BLE001 - told to the test, with its name
                answer = {"broken": f"{type(error).__name__}: {error}"}
            print(json.dumps({"id": request["id"], **answer}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
