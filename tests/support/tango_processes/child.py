"""What the helper processes of the Tango tests have in common: one JSON object a line, requests on stdin, answers and
reports on a pipe of their own. Imports PyTango, so it is imported only in processes that were started for it."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tango

Handler = Callable[..., Any]


class JsonChannel:
    """The lines. What PyTango prints to stdout goes to stderr, the log of this process.

    The process belongs to the one that holds the other end of its stdin, and ends with it.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        line = json.dumps(message) + "\n"
        with self._lock:
            self._out.write(line)
            self._out.flush()

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        """Answer requests until there is nobody to ask any more; then the process ends at once."""
        with tango.EnsureOmniThread():
            for line in sys.stdin:
                request = json.loads(line)
                number = request.pop("id")
                try:
                    self.send(id=number, result=handlers[request.pop("do")](**request))
                except tango.DevFailed as error:
                    self.send(id=number, errors=errors_of(error))
                except Exception as error:  # noqa: BLE001 - told to the test, with its name
                    self.send(id=number, broken=f"{type(error).__name__}: {error}")
        os._exit(0)


def errors_of(error: tango.DevFailed | Any) -> list[dict[str, str]]:
    """The stack of a DevFailed, or of an event's ``errors``."""
    stack = error.args if isinstance(error, tango.DevFailed) else error
    return [{"reason": e.reason, "severity": str(e.severity), "desc": e.desc, "origin": e.origin} for e in stack]


def failure(reason: str, desc: str = "", origin: str = "") -> tango.DevFailed:
    """A DevFailed to push or to raise."""
    try:
        tango.Except.throw_exception(reason, desc, origin)
    except tango.DevFailed as error:
        return error
    raise AssertionError("unreachable")


def plain(value: Any) -> Any:
    """A value as JSON can hold it: states and enums as names, bytes as hex."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, tango.DevState | tango.AttrQuality | tango.CmdArgType | tango.AttrDataFormat):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)
