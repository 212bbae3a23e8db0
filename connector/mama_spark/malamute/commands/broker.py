"""``mama broker``: a Malamute broker, until Ctrl-C."""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mama_spark.options.urls import on_all_interfaces

from ...console.arguments import add_metrics
from ...console.output import say_as
from ...console.signals import stop_on_signals
from ..broker.broker.broker import Broker, BrokerSettings
from ..broker.broker.metrics import summary
from ..broker.configuration import load
from ..broker.session.broker_events import BrokerEvent

#: Seconds after which a thread lets another one run. Each message crosses two threads, and a busy engine would keep the
#: messages of others waiting at each for Python's 5 ms.
SWITCH = 0.001
#: Seconds between collections of old cycles.
COLLECT = 3600.0


def serve(
    bind: str | Sequence[str] | None = None,
    conf_file: str | Path | None = None,
    *,
    metrics: str | None = None,
    stop: threading.Event,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
    warn: Callable[[str], None] = lambda text: print(f"mama: {text}", file=sys.stderr, flush=True),
) -> None:
    """Serve until ``stop`` is set; a stored stream of events holds event records, for discovery.

    :param metrics: ``host:port`` of their pages, instead of what the file says
    :raises ConfigError: the configuration is wrong
    :raises MamaError: it cannot serve, or ended by itself
    """
    settings = load(conf_file, bind)
    if metrics is not None:
        settings = replace(settings, metrics=metrics)
    collecting, switching = gc.get_threshold(), sys.getswitchinterval()
    broker = Broker(settings)
    if broker.keeps_events:
        broker = Broker(settings, encode=_event_record)
    try:
        broker.start()
        spare_collector()
        sys.setswitchinterval(SWITCH)
        for text in open_to_all(settings):
            warn(text)
        say(_ready(broker, settings))
        if broker.metrics_url is not None:
            say(f"metrics: {broker.metrics_url}/metrics, /clients, /streams")
        reported = collected = time.monotonic()
        while not stop.wait(0.2):
            if broker.error is not None:
                break
            now = time.monotonic()
            if now - collected >= COLLECT:
                collected = now
                gc.collect()
            if settings.report and now - reported >= settings.report:
                reported = now
                say(f"broker: {summary(broker.metrics())}")
        broker.stop()
    finally:
        gc.set_threshold(*collecting)
        sys.setswitchinterval(switching)
        gc.unfreeze()


def open_to_all(settings: BrokerSettings) -> list[str]:
    """Warnings of what everybody in the networks of this machine can do."""
    found = []
    for endpoint in settings.endpoints:
        scheme, _, rest = endpoint.partition("://")
        if scheme != "ipc" and on_all_interfaces(rest.rpartition(":")[0]) and settings.security.mechanism == "none":
            found.append(
                f"the broker listens on all interfaces ({endpoint}) and has no login: whoever reaches this machine "
                "can read and publish. Set [security], or bind one interface"
            )
    if settings.metrics is not None:
        from ...telemetry.metrics_server import all_interfaces_warnings  # http.server takes a tenth of the start

        found += all_interfaces_warnings("pages", settings.metrics)
    return found


def spare_collector() -> None:
    """For a process that is a broker: what a message is made of ends with it and is in no cycle, so to look for cycles
    after every 700 objects costs a tenth of the work and finds nothing.

    Older objects are what waits for clients, up to hundreds of thousands of lists: to look through them takes 50 ms, in
    which nobody is served. :func:`run` looks there instead, every :data:`COLLECT` seconds.
    """
    gc.freeze()
    gc.set_threshold(20_000, 1_000_000, 1_000_000)


def _event_record(event: BrokerEvent) -> bytes:
    from ..broker.event_records import broker_event  # not needed to start

    return broker_event(*event)


def _ready(broker: Broker, settings: BrokerSettings) -> str:
    engines = [f"{choice.pattern.decode()} {choice.engine}" for choice in settings.engines]
    security = settings.security
    key = f", public key {security.curve_public_key}" if security.curve_public_key else ""
    streams = ", ".join([*engines, "others simple"] if engines else ["all simple"])
    url, *others = (endpoint.replace("tcp://", "mlp://", 1) for endpoint in broker.endpoints)
    also = f"also {', '.join(others)}; " if others else ""
    return f"ready: {url}  ({also}streams: {streams}; security: {security.mechanism}{key}; Ctrl-C ends it)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bind", metavar="ENDPOINT", action="append",
        help="default: tcp://127.0.0.1:9999, or what the file says; may be repeated, tcp:// and ipc://",
    )  # fmt: skip
    parser.add_argument(
        "--conf-file", type=Path, metavar="FILE.toml", help="streams, limits, security: conf/broker.toml"
    )
    add_metrics(parser)
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')


def run(args: argparse.Namespace) -> int:
    with stop_on_signals() as stop:
        serve(args.bind, args.conf_file, metrics=args.metrics, stop=stop, say=say_as(args.json))
    return stop.exit_code
