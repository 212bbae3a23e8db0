"""``mama broker``: a Malamute broker, until Ctrl-C."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...console.arguments import add_metrics
from ...console.output import say_as
from ...console.signals import stop_on_signals
from ..broker.serve import run as run_broker
from ..broker.session.broker_events import BrokerEvent


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
    def encode(event: BrokerEvent) -> bytes:
        from ..broker.event_records import broker_event  # not needed to start

        return broker_event(*event)

    with stop_on_signals() as stop:
        run_broker(
            args.bind, args.conf_file, metrics=args.metrics, stop=stop, say=say_as(args.json), encode_kept=encode
        )
    return stop.exit_code
