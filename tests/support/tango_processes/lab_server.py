"""A real device server for the Tango tests, run as a program by
:class:`tests.support.tango_processes.servers.TangoServer`.

Its devices have an attribute of every type: ``double``, ``double_spectrum``, ``double_image``, ``double_rw``, ... (for
the names of types: :data:`TYPES`). Their values are what the test says; events are pushed when the test says so. The
attribute ``level`` (abs_change 0.5) sends change events by the server's own criteria. ``texts`` has a configuration
beyond Latin-1. ``plain`` sends none. Before PyTango 10.1 there is a pipe, ``numbers``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tango
import tango.server
from tango.server import Device, attribute, command, run

from tests.support.tango_processes.child import JsonChannel, errors_of, failure

TYPES: dict[str, tuple[Any, Any]] = {  # name -> type of Tango, type of the numpy array
    "boolean": (tango.DevBoolean, np.bool_),
    "short": (tango.DevShort, np.int16),
    "long": (tango.DevLong, np.int32),
    "long64": (tango.DevLong64, np.int64),
    "float": (tango.DevFloat, np.float32),
    "double": (tango.DevDouble, np.float64),
    "uchar": (tango.DevUChar, np.uint8),
    "ushort": (tango.DevUShort, np.uint16),
    "ulong": (tango.DevULong, np.uint32),
    "ulong64": (tango.DevULong64, np.uint64),
    "string": (tango.DevString, None),
    "state": (tango.CmdArgType.DevState, None),
    "enum": (tango.DevEnum, np.int16),
    "encoded": (tango.DevEncoded, None),
}
TEXT = "é ß Ω 漢 😀"
LABELS = ["red", "green", "blue"]
_ZERO: dict[str, Any] = {"string": "", "state": "ON", "encoded": {"format": "", "data": ""}, "boolean": False}
EVENTS = ("change", "archive", "alarm") if hasattr(tango.EventType, "ALARM_EVENT") else ("change", "archive")


class AttributeKind:
    """Type and shape of an attribute, from its name."""

    def __init__(self, name: str) -> None:
        words = name.split("_")
        self.type = words[0] if words[0] in TYPES else "double"
        self.shape = next((w for w in words if w in ("spectrum", "image")), "scalar")

    def zero(self) -> Any:
        zero = _ZERO.get(self.type, 0)
        return {"scalar": zero, "spectrum": [zero], "image": [[zero]]}[self.shape]

    def value(self, given: Any) -> Any:
        """What PyTango wants, from JSON."""
        if self.type == "encoded":
            return given["format"], bytes.fromhex(given["data"])
        if self.type == "state":
            return _each(given, lambda name: tango.DevState.names[name])
        if self.shape == "scalar" or self.type == "string":
            return given
        array = np.array(given, TYPES[self.type][1])
        return array.reshape(0, 0) if self.shape == "image" and not array.size else array


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    return [_each(v, change) for v in value] if isinstance(value, list) else change(value)


def _declare(name: str, writable: bool = False, **more: Any) -> dict[str, Any]:
    """The members of a device class that make an attribute. PyTango 9.3 looks its methods up by their names."""
    kind = AttributeKind(name)
    dtype: Any = TYPES[kind.type][0]
    if kind.shape == "spectrum":
        dtype, more["max_dim_x"] = (dtype,), 1_000_000
    elif kind.shape == "image":
        dtype, more["max_dim_x"], more["max_dim_y"] = ((dtype,),), 10_000, 10_000
    if kind.type == "enum":
        more["enum_labels"] = LABELS

    def read(device: Any) -> Any:
        return device.answer(name)

    def write(device: Any, value: Any) -> None: ...

    read.__name__, write.__name__ = f"read_{name}", f"write_{name}"
    found = attribute(name=name, dtype=dtype, fget=read, **({"fset": write} if writable else {}), **more)
    return {name: found, read.__name__: read, write.__name__: write}


SHAPES = ("", "_spectrum", "_image")
NAMES = [t + s for t in TYPES for s in SHAPES if t != "encoded" or not s]
WRITABLE = ["double_rw", "long_rw"]


class Lab(Device):  # type: ignore[misc]
    """See the module."""

    for _name in NAMES:
        locals().update(_declare(_name))
    for _name in WRITABLE:
        locals().update(_declare(_name, writable=True))
    locals().update(_declare("texts", label=TEXT, unit=TEXT, description=TEXT))
    locals().update(_declare("plain"))
    locals().update(_declare("level", abs_change="0.5", archive_abs_change="0.5", unit="V", label="Level"))

    if hasattr(tango.server, "pipe"):

        def read_numbers(self) -> tuple[str, dict[str, Any]]:
            return "blob", {"x": 0.0}

        numbers = tango.server.pipe(fget="read_numbers", name="numbers")

    def init_device(self) -> None:
        super().init_device()
        self.told: dict[str, dict[str, Any]] = {}
        self.polled: set[str] = set()
        self.set_state(tango.DevState.ON)
        self.set_status("fine")
        for name in [*NAMES, *WRITABLE, "State", "Status"]:
            self.manual(name)
        self.manual("level", detect=True)

    def manual(self, name: str, detect: bool = False) -> None:
        """Events of this attribute are pushed by code."""
        for event in EVENTS:
            getattr(self, f"set_{event}_event")(name, True, detect)
        self.set_data_ready_event(name, True)

    def answer(self, name: str) -> Any:
        """What a read gives: value, or value with time and quality, as :func:`tell` said."""
        told = self.told.get(name, {})
        if told.get("error"):
            raise failure(**told["error"])
        value = AttributeKind(name).value(told.get("value", AttributeKind(name).zero()))
        quality = told.get("quality")
        if not quality and told.get("time") is None:
            return value
        return value, _time(told.get("time")), _quality(quality)

    @command(dtype_in=str, dtype_out=str)  # type: ignore[untyped-decorator]
    def Echo(self, text: str) -> str:
        return text

    @command(dtype_in=str)  # type: ignore[untyped-decorator]
    def Fail(self, reason: str) -> None:
        raise failure(reason, "as wanted", "Lab.Fail")


def _time(seconds: float | None) -> float:
    return time.time() if seconds is None else seconds


def _quality(name: str | None) -> Any:
    return tango.AttrQuality.names[f"ATTR_{name or 'VALID'}"]


# --- what a test can ask for ---------------------------------------------------------------------------------

#: Address of the device that administrates the server.
ADMIN = ""
#: In a process of its own: a client within the server would be one of its sub devices.
_STOP_POLLING = "import sys, tango; tango.DeviceProxy(sys.argv[1]).command_inout('RemObjPolling', sys.argv[2:])"


def _device(name: str) -> Any:
    return tango.Util.instance().get_device_by_name(name)


def tell(device: str, attribute: str, **what: Any) -> None:
    """What reads of the attribute give from now on: ``value``, ``quality``, ``time`` (seconds); or ``error`` with
    reason, desc and origin."""
    _device(device).told[attribute] = what


def state(device: str, state: str, status: str) -> None:
    found = _device(device)
    found.set_state(tango.DevState.names[state])
    found.set_status(status)


def _pusher(found: Any, event: str) -> Callable[..., None]:
    if event == "user":
        return lambda name, *what: found.push_event(name, [], [], *what)
    push: Callable[..., None] = getattr(found, f"push_{event}_event")
    return push


def push(
    device: str,
    attribute: str,
    event: str = "change",
    value: Any = None,
    quality: str | None = None,
    time: float | None = None,
    error: dict[str, str] | None = None,
) -> None:
    """Push one event: of a value (null for State and Status, which send the device's own), or of an error."""
    found = _device(device)
    what: list[Any] = []
    if error is not None:
        what = [failure(**error)]
    elif value is not None:
        given = AttributeKind(attribute).value(value)
        what = list(given) if AttributeKind(attribute).type == "encoded" else [given]
        if quality or time is not None:
            what += [_time(time), _quality(quality)]
    with tango.AutoTangoMonitor(found):
        _pusher(found, event)(attribute, *what)


def burst(device: str, attribute: str, count: int, event: str = "change", first: int = 0, width: int = 0) -> float:
    """Push the numbers ``first``, ``first + 1``, ... as fast as it goes; the seconds it took.

    :param width: elements of each, of a spectrum of doubles
    """
    found = _device(device)
    send = _pusher(found, event)
    with tango.AutoTangoMonitor(found):
        begin = time.monotonic()
        for value in range(first, first + count):
            send(attribute, np.full(width, value, np.float64) if width else value)
        return time.monotonic() - begin


def push_pipe(device: str, value: float) -> None:
    """Push an event of the pipe."""
    found = _device(device)
    with tango.AutoTangoMonitor(found):
        found.push_pipe_event("numbers", ("blob", {"x": value}))


def data_ready(device: str, attribute: str, counter: int) -> None:
    found = _device(device)
    with tango.AutoTangoMonitor(found):
        found.push_data_ready_event(attribute, counter)


def add(device: str, attribute: str) -> None:
    """A new attribute, named as the others (``double_spectrum_more``); tells clients by an interface change."""
    found = _device(device)
    access = tango.AttrWriteType.READ
    kind = AttributeKind(attribute)
    data_type = TYPES[kind.type][0]
    dynamic: Any = {
        "scalar": lambda: tango.Attr(attribute, data_type, access),
        "spectrum": lambda: tango.SpectrumAttr(attribute, data_type, access, 1000),
        "image": lambda: tango.ImageAttr(attribute, data_type, access, 1000, 1000),
    }[kind.shape]()

    def read(attr: Any) -> None:
        attr.set_value(found.answer(attribute))

    found.add_attribute(dynamic, read, None)
    found.manual(attribute)


def remove(device: str, attribute: str) -> None:
    _device(device).remove_attribute(attribute, clean_db=False)  # with it, servers without a database crash


def poll(device: str, attribute: str, period: int) -> None:
    """The server reads the attribute every ``period`` ms, and sends events by its criteria; 0 ends it."""
    found = _device(device)
    if period:
        found.poll_attribute(attribute, period)
        found.polled.add(attribute)
    else:  # a call of the device would keep the interpreter from the thread that polls, which it waits for
        python = os.environ["INTERPRETER"]  # which for PyTango 9 is a script
        subprocess.run([python, "-c", _STOP_POLLING, ADMIN, device, "attribute", attribute], check=True)
        found.polled.discard(attribute)


def rest(device: str) -> None:
    """The server reads nothing of the device by itself any more."""
    for name in tuple(_device(device).polled):
        poll(device, name, 0)


HANDLERS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (tell, state, push, push_pipe, burst, data_ready, add, remove, poll, rest)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instance", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--devices", required=True, help="comma list")
    parser.add_argument("--database", action="store_true", help="register with the database of TANGO_HOST")
    given = parser.parse_args()
    channel = JsonChannel()
    arguments = ["Lab", given.instance, "-ORBendPoint", f"giop:tcp:127.0.0.1:{given.port}"]
    global ADMIN
    ADMIN = f"dserver/Lab/{given.instance}"
    if given.database:
        _register(given.instance, given.devices.split(","))
    else:
        arguments += ["-nodb", "-dlist", given.devices]
        ADMIN = f"tango://127.0.0.1:{given.port}/{ADMIN}#dbase=no"

    def ready() -> None:
        threading.Thread(target=channel.serve, args=(HANDLERS,), daemon=True).start()

    try:
        run([Lab], args=arguments, post_init_callback=ready, raises=True)
    except tango.DevFailed as error:
        raise SystemExit(f"no device server: {errors_of(error)}") from None


def _register(instance: str, devices: list[str]) -> None:
    database = tango.Database()
    for name, kind in [(f"dserver/Lab/{instance}", "DServer"), *((d, "Lab") for d in devices)]:
        info = tango.DbDevInfo()
        info.name, info._class, info.server = name, kind, f"Lab/{instance}"
        database.add_device(info)


if __name__ == "__main__":
    main()
