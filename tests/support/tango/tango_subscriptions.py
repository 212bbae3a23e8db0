"""Events of live Tango subscriptions: wait for them, and look at them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.types import AttributeValue, DevState
from mama_spark.testing.waiting import until

from tests.support.tango_processes.servers import TangoDatabase, TangoServer

DEVICE = "test/pub/1"


def own(folder: Path, database: TangoDatabase | None = None, name: str = "own") -> TangoServer:
    """A device server for one test, with an instance name of its own."""
    return TangoServer(
        folder / name, [f"test/{folder.name.lower()}/1"], database=database, instance=f"{folder.name}-{name}"
    )


class Watch:
    """Collects the events of a subscriber until a condition is true."""

    def __init__(self, subscriber: TangoSubscriber) -> None:
        self.subscriber = subscriber
        self.events: list[SubscriptionEvent] = []

    def until(self, enough: Callable[[], Any], act: Callable[[], Any] = lambda: None) -> None:
        until(lambda: self.more() and enough(), act)

    def more(self) -> bool:
        self.events += self.subscriber.take(100_000, 0.0)
        return True

    def of(self, kind: Kind, subscription: Subscription | None = None) -> list[SubscriptionEvent]:
        return [n for n in self.events if n.kind is kind and subscription in (None, n.subscription)]

    def wait(self, kind: Kind, count: int = 1, act: Callable[[], Any] = lambda: None) -> list[SubscriptionEvent]:
        self.until(lambda: len(self.of(kind)) >= count, act)
        return self.of(kind)

    def begin(self, subscription: Subscription, push: Callable[[int], Any]) -> int:
        """Push -1 until an event arrives, then -2, after which no earlier event arrives; returns the counter of -2."""
        self.until(lambda: self.of(Kind.EVENT, subscription), lambda: push(-1))
        push(-2)
        self.until(lambda: number(self.of(Kind.EVENT, subscription)[-1]) == -2)
        last = self.of(Kind.EVENT, subscription)[-1].ctr
        self.fresh()
        return last

    def fresh(self) -> None:
        self.more()
        self.events.clear()


def number(event: SubscriptionEvent) -> Any:
    return numbers([event])[0]


def reasons(events: list[SubscriptionEvent]) -> set[str]:
    return {event.errors[0].reason for event in events}


def pair(port: int, scheme: str = "tcp") -> EndpointPair:
    return EndpointPair(f"{scheme}://127.0.0.1:{port}", f"{scheme}://127.0.0.1:{port}")


SAMPLES: dict[str, list[Any]] = {
    "boolean": [True, False], "short": [-32768, 32767], "long": [-(2**31), 7], "long64": [-(2**63), 2**63 - 1],
    "float": [1.5, -0.25], "double": [1e300, -2.5], "uchar": [0, 255], "ushort": [0, 65535], "ulong": [0, 2**32 - 1],
    "ulong64": [0, 2**64 - 1], "string": ["hello", "\xe9 \xfc"], "enum": [2, 0], "state": ["MOVING", "ON"],
}  # fmt: skip


def numbers(events: list[SubscriptionEvent]) -> list[Any]:
    """The read values of scalar events."""
    found = []
    for event in events:
        read = event.value.read
        found.append(read[0] if not isinstance(read, DevState) and read is not None else read)
    return found


def shaped(type_: str, shape: str) -> tuple[Any, list[Any], tuple[int, int]]:
    """A value in the form that the server needs, its elements, and its dimensions."""
    first, second = SAMPLES[type_]
    if shape == "scalar":
        return second, [second], (1, 0)
    if shape == "spectrum":
        return [first, second, first], [first, second, first], (3, 0)
    return [[first, second], [second, first], [first, first]], [first, second, second, first, first, first], (2, 3)


def elements(value: AttributeValue) -> list[Any]:
    read = value.read
    assert read is not None
    if isinstance(read, DevState):
        return [read.name]
    return [x.name if isinstance(x, DevState) else x for x in (read.tolist() if isinstance(read, np.ndarray) else read)]
