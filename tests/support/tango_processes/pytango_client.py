"""A real Tango client for the tests, run as a program by :class:`tests.support.tango_processes.servers.DeviceProbe`.

Answers come with the number of their request; events come as they come, as ``{"subscription": n, ...}``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tango

from tests.support.tango_processes.child import JsonChannel, errors_of, plain

CHANNEL = JsonChannel()
_proxies: dict[str, Any] = {}
_subscriptions: dict[int, tuple[Any, int, Listener]] = {}
_next = iter(range(1, 1_000_000_000))


#: Why the client library gives up: it waits 100 ms for a connection, tries no other for a second then, and waits 3 s
#: for answers. All of that is too little on a machine that stands still now and then.
_TRANSIENT = {"API_CantConnectToDevice", "API_DeviceTimedOut", "API_CommunicationFailed"}
_TRIES, _PAUSE = 5, 1.1


def _retried(act: Callable[[], Any]) -> Any:
    for _ in range(_TRIES - 1):
        try:
            return act()
        except tango.DevFailed as error:
            if not any(one.reason in _TRANSIENT for one in error.args):
                raise
        time.sleep(_PAUSE)
    return act()


def _proxy(device: str) -> Any:
    if device not in _proxies:
        _proxies[device] = _retried(lambda: _connected(device))
    return _proxies[device]


def _connected(device: str) -> Any:
    found = tango.DeviceProxy(device)
    found.ping()
    return found


def _time(when: Any) -> int:
    """Nanoseconds."""
    return int(when.tv_sec) * 1_000_000_000 + int(when.tv_usec) * 1000 + int(when.tv_nsec)


def _value(found: Any) -> dict[str, Any]:
    """A DeviceAttribute."""
    return {
        "value": plain(found.value), "set": plain(found.w_value), "quality": str(found.quality),
        "time": _time(found.time), "dims": [found.dim_x, found.dim_y, found.w_dim_x, found.w_dim_y],
    }  # fmt: skip


def _fields(found: Any) -> dict[str, Any]:
    """Whatever else: the public, plain fields of an object, those below it included."""
    fields: dict[str, Any] = {}
    for name in dir(found):
        value = getattr(found, name)
        if name.startswith("_") or callable(value):
            continue
        if type(value).__name__ == "StdStringVector":
            fields[name] = list(value)
        elif type(value).__module__.startswith("tango") and not isinstance(value, int | str):
            fields[name] = _fields(value)
        else:
            fields[name] = plain(value)
    return fields


class Listener:
    """Reports events of one subscription, or only counts them (``quiet``)."""

    def __init__(self, number: int, quiet: bool) -> None:
        self._number, self._quiet = number, quiet
        self.count = self.errors = 0
        self.last: Any = None  # a DeviceAttribute

    def push_event(self, event: Any) -> None:
        """Called in one thread. As short as can be, since it is what a benchmark measures."""
        self.count += 1
        if self._quiet and not event.err:
            self.last = event.attr_value
            return
        self.errors += bool(event.err)
        CHANNEL.send(subscription=self._number, **_event(event))


def _event(event: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"err": bool(event.err), "errors": errors_of(event.errors)}
    if event.err:
        return told
    if isinstance(event, tango.EventData):
        told["value"] = _value(event.attr_value)
    elif isinstance(event, tango.AttrConfEventData):
        told["config"] = _fields(event.attr_conf)
    elif isinstance(event, tango.DataReadyEventData):
        told["counter"], told["type"] = event.ctr, str(tango.CmdArgType.values[event.attr_data_type])
    elif isinstance(event, tango.DevIntrChangeEventData):
        told["started"] = bool(event.dev_started)
        told["commands"] = [c.cmd_name for c in event.cmd_list]
        told["attributes"] = [a.name for a in event.att_list]
    return told


# --- what a test can ask for ---------------------------------------------------------------------------------


def subscribe(device: str, attribute: str | None, event: str, quiet: bool = False) -> int:
    """A number that its events carry. ``event``: as in topics (``change``, ``user_event``, ``intr_change``, ...)."""
    number = next(_next)
    listener = Listener(number, quiet)
    kind = tango.EventType.names[_EVENT_TYPES[event]]
    proxy = _proxy(device)
    of = () if attribute is None else (attribute,)
    found = _retried(lambda: proxy.subscribe_event(*of, kind, listener.push_event))
    _subscriptions[number] = proxy, found, listener
    return number


_EVENT_TYPES = {
    "change": "CHANGE_EVENT", "periodic": "PERIODIC_EVENT", "archive": "ARCHIVE_EVENT", "user_event": "USER_EVENT",
    "attr_conf": "ATTR_CONF_EVENT", "data_ready": "DATA_READY_EVENT", "intr_change": "INTERFACE_CHANGE_EVENT",
    "alarm": "ALARM_EVENT",
}  # fmt: skip


def unsubscribe(subscription: int) -> None:
    proxy, found, _ = _subscriptions.pop(subscription)
    proxy.unsubscribe_event(found)


def forget() -> None:
    """All subscriptions and devices."""
    for number in tuple(_subscriptions):
        unsubscribe(number)
    _proxies.clear()


def counted(subscription: int) -> dict[str, Any]:
    """How many events came (errors among them), and the last value of a quiet one."""
    listener = _subscriptions[subscription][2]
    count, last = listener.count, listener.last
    return {"count": count, "errors": listener.errors, "last": last and plain(last.value)}


def read(device: str, attribute: str) -> dict[str, Any]:
    return _value(_proxy(device).read_attribute(attribute))


def write(device: str, attribute: str, value: Any) -> None:
    _proxy(device).write_attribute(attribute, value)


def lock(device: str) -> None:
    """Nobody else may write or run commands from now on."""
    _proxy(device).lock()


def unlock(device: str) -> None:
    _proxy(device).unlock()


def command(device: str, name: str, argument: Any = None) -> Any:
    return plain(_proxy(device).command_inout(name, argument))


def admin(device: str, name: str, argument: Any = None) -> Any:
    """A command of the device's admin device (``DevRestart``, ``AddObjPolling``, ``QueryEventSystem``, ...)."""
    return plain(_proxy(device).adm_name() and _admin(device).command_inout(name, argument))


def _admin(device: str) -> Any:
    name = _proxy(device).adm_name()
    if name.startswith("tango://"):
        return _proxy(name)
    head, _, tail = device.partition("#")
    if head.startswith("tango://"):
        name = "/".join([*head.split("/")[:3], name]) + (f"#{tail}" if tail else "")
    return _proxy(name)


def configure(device: str, attribute: str, changes: dict[str, str]) -> None:
    """Change an attribute's configuration: names as ``label``, or dotted as ``events.ch_event.abs_change``."""
    found = _proxy(device).get_attribute_config(attribute)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = found
        for parent in parents:
            place = getattr(place, parent)
        setattr(place, last, value)
    _proxy(device).set_attribute_config(found)


def config(device: str, attribute: str) -> dict[str, Any]:
    return _fields(_proxy(device).get_attribute_config(attribute))


def info(device: str) -> dict[str, Any]:
    found = _proxy(device).info()
    return {name: plain(getattr(found, name)) for name in dir(found) if not name.startswith("_")}


def ping(device: str) -> int:
    return int(_proxy(device).ping())


def attributes(device: str) -> list[str]:
    return list(_proxy(device).get_attribute_list())


def commands(device: str) -> list[str]:
    return list(_proxy(device).get_command_list())


HANDLERS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        subscribe, unsubscribe, forget, counted, read, write, lock, unlock, command, admin, configure, config, info,
        ping, attributes, commands,
    )
}  # fmt: skip

if __name__ == "__main__":
    CHANNEL.serve(HANDLERS)
