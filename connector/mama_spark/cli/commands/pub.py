"""``mama pub TOPIC [VALUE]``: publishes messages from the terminal and reports their outcome."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace

from ...console.arguments import add_transport, completed, options, pairs, transport
from ...console.exit_codes import FINE, NOT_ALL
from ...console.progress import Progress
from ...options import SinkOptions, command
from ...publishing.api import Flight, Headers
from ...publishing.managed.managed_publisher import ManagedPublisher
from ...registry import publisher_bridge

_USE = command(
    "pub",
    *("stream", "streams", "create_stream", "grow_streams", "ack_mode", "dedup", "order", "on_uncertain"),
    *("wait_timeout", "max_in_flight", "refill_allowed_at", "poll_time", "hold_pause_time"),
    *("retry_attempts", "retry_backoff", "retry_max_backoff", "retry_deadline"),
)

#: ``maxInFlight`` where neither it nor ``refillAllowedAt`` is given.
_IN_FLIGHT = 1_000


class _Listener:
    def __init__(self) -> None:
        self.stored: list[Flight] = []  # the last one
        self.count = self.failures = 0

    def published(self, flight: Flight) -> None:
        """Ignored: no terminal event."""

    def acked(self, flight: Flight) -> None:
        self.count += 1
        self.stored = [flight]

    def completed_exceptionally(self, flight: Flight) -> None:
        self.failures += 1
        print(f"mama: {flight.subject}: {flight.publish_ack_future.exception()}", file=sys.stderr)

    def timeout(self, flight: Flight) -> None:
        self.completed_exceptionally(flight)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="topic of the message: the subject on NATS")
    parser.add_argument("value", nargs="?", help="content (default: each line of standard input is a message)")
    parser.add_argument(
        "-H", "--header", action="append", default=[], metavar="NAME=VALUE", help="header; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="the outcome as one line of JSON")
    add_transport(parser, "mamapub", positional=False)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when every message was acknowledged, else 1."""
    o = _sink_options(args)
    bridge = publisher_bridge(o)
    headers: Headers = {}
    for name, text in pairs(args.header, "--header"):
        headers.setdefault(name, []).append(text)
    values: Iterable[bytes] = [args.value.encode()] if args.value is not None else _lines()
    listener = _Listener()
    publisher = ManagedPublisher(
        bridge, window=o.window.for_bridge(bridge.capabilities, with_ids=o.dedup), dedup=o.dedup,
        poll_time=o.poll_time, hold_pause_time=o.hold_pause_time, listener=listener,
    )  # fmt: skip
    with publisher, Progress("publishing", "messages") as progress:
        for value in values:
            publisher.publish_async(args.topic, value, headers or None)
            progress.add()
    _say(listener, args)
    return NOT_ALL if listener.failures else FINE


def _say(listener: _Listener, args: argparse.Namespace) -> None:
    if args.json:
        places = [flight.publish_ack_future.result() for flight in listener.stored]
        last = {"stream": places[0].stream, "sequence": places[0].sequence} if places else {}
        print(json.dumps({"acknowledged": listener.count, "failed": listener.failures, **last}, ensure_ascii=False))
        return
    if args.value is None:
        print(f"{listener.count:,} acknowledged, {listener.failures:,} failed")
    for flight in listener.stored if args.value is not None else []:
        ack = flight.publish_ack_future.result()
        where = "" if ack.stream is None else f": {ack.stream} {'' if ack.sequence is None else ack.sequence}".rstrip()
        print(f"acknowledged{where}")


def _sink_options(args: argparse.Namespace) -> SinkOptions:
    """The options, with defaults for somebody who waits at a terminal: a smaller window, and no resend after the first
    ``waitTimeout``."""
    names = {name.lower() for name in completed(dict(transport(args)), SinkOptions).options}
    window = {} if names & {"maxinflight", "refillallowedat"} else {"maxInFlight": str(_IN_FLIGHT)}
    o = options(args, SinkOptions, _USE, **window)
    return o if "retrydeadline" in names else replace(o, retry_deadline=o.wait_timeout)


def _lines() -> Iterable[bytes]:
    return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
