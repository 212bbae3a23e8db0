"""``mama pub TOPIC [VALUE]``: publish from the terminal, and say what became of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from ..bridges import publisher_bridge
from ..options import SinkOptions
from ..publisher.api import Flight, Headers
from ..publisher.managed.managed_publisher import ManagedPublisher
from ..sending.retry import RetryPolicy
from .arguments import options, pairs

NOT_ALL = 1
_IN_FLIGHT = 1_000


class _Listener:
    """Counts, and says on standard error what failed."""

    def __init__(self) -> None:
        self.stored: list[Flight] = []  # the last one
        self.count = self.failures = 0

    def published(self, flight: Flight) -> None:
        """Not the end yet."""

    def acked(self, flight: Flight) -> None:
        self.count += 1
        self.stored = [flight]

    def completed_exceptionally(self, flight: Flight) -> None:
        self.failures += 1
        print(f"mama: {flight.subject}: {flight.publish_ack_future.exception()}", file=sys.stderr)

    def timeout(self, flight: Flight) -> None:
        self.completed_exceptionally(flight)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when every message was acknowledged, else 1."""
    o = SinkOptions.parse(options(args, SinkOptions))
    headers: Headers = {}
    for name, text in pairs(args.header, "--header"):
        headers.setdefault(name, []).append(text)
    values: Iterable[bytes] = [args.value.encode()] if args.value is not None else _lines()
    listener = _Listener()
    retry = RetryPolicy.doubling(o.retry_backoff, o.retry_max_backoff, o.wait_timeout)
    publisher = ManagedPublisher(
        publisher_bridge(o), max_in_flight=_IN_FLIGHT, refill_allowed_at=_IN_FLIGHT // 2, retry_config=retry,
        wait_timeout=o.wait_timeout, listener=listener,
    )  # fmt: skip
    with publisher:
        for value in values:
            publisher.publish_async(args.topic, value, headers or None)
    if args.value is None:
        print(f"{listener.count:,} acknowledged, {listener.failures:,} failed")
    for flight in listener.stored if args.value is not None else []:
        ack = flight.publish_ack_future.result()
        where = "" if ack.stream is None else f": {ack.stream} {'' if ack.sequence is None else ack.sequence}".rstrip()
        print(f"acknowledged{where}")
    return NOT_ALL if listener.failures else 0


def _lines() -> Iterable[bytes]:
    return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
