"""Real Tango processes for tests: device servers, the database, and a client. Each one is a process of its own, and
nothing here imports PyTango: what forks after importing it gets no events.

    with TangoServer(tmp_path / "ds") as server, DeviceProbe(tmp_path / "probe") as probe:
        number = probe.subscribe(server.address(), "double", "change")
        until(lambda: len(probe.events(number)) > 1, lambda: server.push("double", 0))
        server.push("double", 2.5)
        event = probe.wait_event(number, lambda e: e["value"]["value"] == 2.5)

What is pushed in the first milliseconds after a subscription may be gone, since it has not reached the socket yet:
:func:`~mama_spark.testing.waiting.until` pushes until something came.

The device class is in :mod:`tests.support.tango_processes.lab_server`: what attributes there are, and what its requests
do.
"""

from __future__ import annotations

import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Never, Self

from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.testing.waiting import TIMEOUT

from tests.support.ports import lasting_port
from tests.support.tango_processes.process import Event, Failed, TangoProcess

__all__ = [
    "BEAT", "PATIENT", "TIMEOUT", "DeviceProbe", "Event", "Failed", "SharedTangoServer", "TangoDatabase",
    "TangoMirror", "TangoServer", "answers",
]  # fmt: skip


#: Of subscribers in tests where no heartbeat is to be missed. Real servers send one each 9 s: on a machine that stands
#: still for a second, a subscriber with Tango's own 10 s begins anew, and tells so.
PATIENT = Timeouts(heartbeat=30.0)
#: Seconds between heartbeats of our own sources in such tests: real clients begin anew after 10 s without one.
BEAT = 2.0


def answers(port: int, key: str, timeout: float = 5.0) -> bool:
    """Whether a server there says (GIOP LocateRequest) that it has the object ``key``, or anything if that is empty."""
    body = struct.pack("<II", 1, len(key)) + key.encode("ascii")
    request = b"GIOP\1\0\1\3" + struct.pack("<I", len(body)) + body
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(request)
            reply = b""
            while len(reply) < 20:
                more = connection.recv(20 - len(reply))
                if not more:
                    return False
                reply += more
    except OSError:
        return False
    return reply[7] == 4 and (not key or struct.unpack("<I" if reply[6] & 1 else ">I", reply[16:])[0] == 1)


class _Server(TangoProcess):
    """Listens at a port, which stays the same over restarts."""

    key = ""  #: an object that it has when it is ready

    def __init__(self, folder: Path | str, environment: dict[str, str] | None, port: int, *, release: int = 10) -> None:
        super().__init__(folder, environment, release=release)
        self.port = port
        self._given = bool(port)

    def start(self) -> Self:
        """Start and wait until it answers.

        :raises AssertionError: it ended, or did not answer in time
        """
        for _ in range(5):
            self.port = self.port or lasting_port()
            self.spawn()
            if self._wait_ready():
                self._given = True
                return self
            ended = self.tail()
            self.stop()
            if self._given or "Failed to bind" not in ended:
                break
            self.port = 0  # somebody else was faster
        raise AssertionError(f"{type(self).__name__} ended while starting:\n{self.tail()}")

    def _wait_ready(self) -> bool:
        until = time.monotonic() + TIMEOUT
        while not self._is_ready():
            if not self.running:
                return False
            if time.monotonic() > until:
                self.kill()
                raise AssertionError(f"{type(self).__name__} was not ready in time:\n{self.tail()}")
            time.sleep(0.01)
        return self.running

    def _is_ready(self) -> bool:
        return answers(self.port, self.key)


class TangoDatabase(_Server):
    """PyTango's database server, on SQLite in ``folder``."""

    module = "tests.support.tango_processes.database"
    key = "database"

    def __init__(self, folder: Path | str, *, port: int = 0) -> None:
        super().__init__(folder, None, port)

    @property
    def host(self) -> str:
        """As in ``TANGO_HOST``."""
        return f"127.0.0.1:{self.port}"

    def arguments(self) -> Sequence[str]:
        return ["--host", "127.0.0.1", "--port", str(self.port), "2"]


class TangoServer(_Server):
    """A device server with devices of the class ``Lab``.

    :param devices: their names
    :param database: where it registers; None = it runs with ``-nodb``
    :param environment: more of it, e.g. ``TANGO_DS_EVENT_BUFFER_HWM``
    :param release: of PyTango, 10 or 9
    """

    module = "tests.support.tango_processes.lab_server"

    def __init__(
        self, folder: Path | str, devices: Sequence[str] = ("test/lab/1",), *, database: TangoDatabase | None = None,
        instance: str = "t", port: int = 0, environment: dict[str, str] | None = None, release: int = 10,
    ) -> None:  # fmt: skip
        environment = {**(environment or {}), **({"TANGO_HOST": database.host} if database else {})}
        super().__init__(folder, environment, port, release=release)
        self.devices, self.instance, self.database = tuple(devices), instance, database
        self.key = "" if database else self.admin

    def only(self, *devices: str) -> SharedTangoServer:
        """The same running server, seen as one that has these devices alone."""
        return SharedTangoServer(self, devices)

    @property
    def admin(self) -> str:
        """Name of the admin device; without a database also its object key."""
        return f"dserver/lab/{self.instance}"

    @property
    def host(self) -> str:
        """What topics begin with, behind ``tango://``: of the database, or of this server by its host's name."""
        return self.database.host if self.database else f"{socket.gethostname().lower()}:{self.port}"

    def address(self, device: str | None = None) -> str:
        """Full name of a device (the first one when none is named), for clients."""
        name = device or self.devices[0]
        if self.database:
            return f"tango://{self.database.host}/{name}"
        return f"tango://127.0.0.1:{self.port}/{name}#dbase=no"

    def topic(self, attribute: str, event: str = "idl5_change", device: str | None = None) -> str:
        suffix = "" if self.database else "#dbase=no"
        return f"tango://{self.host}/{device or self.devices[0]}/{attribute}{suffix}.{event}".lower()

    def _is_ready(self) -> bool:
        """It answers before: what is asked for then, as polling, may never begin."""
        return super()._is_ready() and "Ready to accept request" in self.tail()

    def arguments(self) -> Sequence[str]:
        given = ["--instance", self.instance, "--port", str(self.port), "--devices", ",".join(self.devices)]
        return [*given, "--database"] if self.database else given

    def do(self, do: str, attribute: str | None = None, /, *, device: str | None = None, **arguments: Any) -> Any:
        """A request of :mod:`tests.support.tango_processes.lab_server`."""
        if attribute is not None:
            arguments["attribute"] = attribute
        return self.call(do, device=device or self.devices[0], **arguments)

    def tell(self, attribute: str, value: Any = None, **what: Any) -> None:
        """What reads give from now on."""
        self.do("tell", attribute, **({"value": value} if value is not None else {}), **what)

    def push(self, attribute: str, value: Any = None, event: str = "change", **what: Any) -> None:
        """Push one event."""
        self.do("push", attribute, event=event, value=value, **what)

    def push_error(self, attribute: str, reason: str, desc: str = "", origin: str = "", event: str = "change") -> None:
        """Push one event that is an error."""
        self.do("push", attribute, event=event, error={"reason": reason, "desc": desc, "origin": origin})


class SharedTangoServer(TangoServer):
    """Some devices of a running server, as if there were no others; nobody can end it, pause it or start it."""

    def __init__(self, server: TangoServer, devices: tuple[str, ...]) -> None:
        self.__dict__.update(server.__dict__)
        self.devices = devices

    @property
    def log(self) -> Path:
        return self.folder / f"{TangoServer.__name__}.log"

    def spawn(self) -> Never:
        raise AssertionError("other tests use this server: take own_lab to start and stop one")

    def pause(self) -> Never:
        self.spawn()

    def _end(self, number: signal.Signals) -> Never:
        self.spawn()


class TangoMirror(_Server):
    """A device server whose device has one attribute, ``forwarded``: that of another one.

    :param root: ``domain/family/member/attribute``
    """

    module = "tests.support.tango_processes.mirror"

    def __init__(self, folder: Path | str, root: str, database: TangoDatabase, device: str = "test/mirror/1") -> None:
        super().__init__(folder, {"TANGO_HOST": database.host}, 0)
        self.root, self.device, self.database = root, device, database

    @property
    def address(self) -> str:
        return f"tango://{self.database.host}/{self.device}"

    def _is_ready(self) -> bool:
        return super()._is_ready() and "Ready to accept request" in self.tail()

    def arguments(self) -> Sequence[str]:
        return [str(self.port), self.device, self.root]


class DeviceProbe(TangoProcess):
    """A real client (``tango.DeviceProxy``) with the requests of :mod:`tests.support.tango_processes.pytango_client`.

    :param tango_host: where its database is; None = it knows none
    :param release: of PyTango, 10 or 9
    """

    module = "tests.support.tango_processes.pytango_client"

    def __init__(
        self, folder: Path | str, *, tango_host: str | None = None, environment: dict[str, str] | None = None,
        release: int = 10,
    ) -> None:  # fmt: skip
        host = {"TANGO_HOST": tango_host} if tango_host else {}
        super().__init__(folder, {**(environment or {}), **host}, release=release)

    def subscribe(self, device: str, attribute: str | None, event: str, *, quiet: bool = False) -> int:
        """Number of the subscription. ``event`` as in topics; ``quiet``: events are only counted.

        :raises Failed: the server or the client library refused
        """
        number: int = self.call("subscribe", device=device, attribute=attribute, event=event, quiet=quiet)
        return number

    def unsubscribe(self, subscription: int) -> None:
        self.call("unsubscribe", subscription=subscription)

    def events(self, subscription: int) -> list[Event]:
        """All that came so far, in order."""
        with self._changed:
            return list(self._events.get(subscription, ()))

    def wait_events(self, subscription: int, count: int) -> list[Event]:
        """All events, when there are at least ``count``."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._events.get(subscription, ())) >= count or self._ended, TIMEOUT)
        found = self.events(subscription)
        assert len(found) >= count, f"{len(found)} of {count} events came: {found[-3:]}"
        return found

    def wait_event(self, subscription: int, wanted: Callable[[Event], Any]) -> Event:
        """The first event that ``wanted`` accepts."""
        with self._changed:
            self._changed.wait_for(lambda: any(map(wanted, self._events.get(subscription, ()))) or self._ended, TIMEOUT)
        found = next(filter(wanted, self.events(subscription)), None)
        assert found is not None, f"no such event among {self.events(subscription)[-5:]}\n{self.tail()}"
        return found
