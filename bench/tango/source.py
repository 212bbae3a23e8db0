"""How fast the event source pushes, and how much one real client gets of it: the part ``source`` of
:mod:`bench.tango`.

Events of one double, pushed one by one and as a table: with nobody subscribed, which makes no message; with somebody
subscribed and nobody attached, which sends them to a socket without a reader; and to one ``tango.DeviceProxy`` with a
Python callback in a process of its own. What that client gets of Tango's own device server tells what it can take.
High-water marks are 1,000,000 on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.idl.negotiation import SubscriberInfo
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import EventType
from mama_spark.testing.waiting import until

from tests.support.tango_processes.servers import DeviceProbe, TangoServer

from .reader import Watch

DEVICE = "bench/source/1"
ALONE, LEFT, HEARD = "alone", "left", "heard"  #: attributes: nobody subscribed, subscribed and gone, with a client
REAL = "double"  #: attribute of Tango's own server
HWM = 1_000_000
Push = Callable[[TangoEventSource, str, int], None]


def one_by_one(source: TangoEventSource, name: str, count: int) -> None:
    for value in range(count):
        source.push_change_event(DEVICE, name, float(value))


class Source:
    """:param folder: for the log of the client"""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        device = Device(DEVICE, [Attribute(name) for name in (ALONE, LEFT, HEARD)])
        self._source = TangoEventSource([device], SourceSettings(hwm=HWM))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._source)
            with open_device(self._source.address(self._source.admin), timeout=3.0) as admin:
                admin.subscribe(SubscriberInfo(DEVICE, LEFT, EventType.CHANGE, 6))
            environment = {"TANGO_EVENT_BUFFER_HWM": str(HWM)}
            self._probe = stack.enter_context(DeviceProbe(self._folder / "probe", environment=environment))
            environment = {"TANGO_DS_EVENT_BUFFER_HWM": str(HWM)}
            self._real = stack.enter_context(TangoServer(self._folder / "server", environment=environment))
            self._number = self._listen(
                stack, self._source.address(DEVICE), HEARD, lambda: self._source.push_change_event(DEVICE, HEARD, -1.0)
            )
            self._number_of_real = self._listen(stack, self._real.address(), REAL, lambda: self._real.push(REAL, -1.0))
            self._stack = stack.pop_all()
        return self

    def _listen(self, stack: ExitStack, device: str, attribute: str, push: Callable[[], object]) -> int:
        """Subscribe the client; ``push`` pushes -1."""
        number = self._probe.subscribe(device, attribute, "change", quiet=True)
        stack.callback(self._probe.unsubscribe, number)
        until(lambda: self._counted(number)["last"] == -1.0, push)
        return number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _counted(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self._probe.call("counted", subscription=number)
        return found

    def ways(self) -> dict[str, Callable[[int], dict[str, Any]]]:
        """name -> a run of so many events."""
        return {
            "push": lambda count: self._alone(one_by_one, ALONE, count),
            "send": lambda count: self._alone(one_by_one, LEFT, count),
            "client": lambda count: self._ours(one_by_one, count),
            "client-tango": self._theirs,
        }

    def _alone(self, push: Push, name: str, count: int) -> dict[str, Any]:
        sent = self._source.sent
        with Watch(count, source=os.getpid()) as watch:
            push(self._source, name, count)
        if self._source.sent - sent != (count if name == LEFT else 0):
            raise RuntimeError(f"pushed {count}, and {self._source.sent - sent} messages were sent")
        return watch.told

    def _ours(self, push: Push, count: int) -> dict[str, Any]:
        return self._heard(self._number, os.getpid(), lambda: push(self._source, HEARD, count), count)

    def _theirs(self, count: int) -> dict[str, Any]:
        return self._heard(
            self._number_of_real, self._real.pid, lambda: self._real.do("burst", REAL, count=count), count
        )

    def _heard(self, number: int, source: int, send: Callable[[], object], count: int) -> dict[str, Any]:
        """Until the client has the last one.

        :raises RuntimeError: it did not get all
        """
        before = self._counted(number)
        with Watch(count, source=source, client=self._probe.pid) as watch:
            send()
            until(lambda: self._counted(number)["count"] >= before["count"] + count)
        after = self._counted(number)
        if (after["count"] - before["count"], after["errors"], after["last"]) != (count, before["errors"], count - 1.0):
            raise RuntimeError(f"pushed {count}, and the client counts {before} before and {after} behind")
        return watch.told
