"""``mama broker``: a Malamute broker, until Ctrl-C."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..mama.discovery.broker_events import broker_event
from ..services.malamute_broker.serve import run as run_broker
from .signals import stop_on_signals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bind", metavar="ENDPOINT", help="default: tcp://127.0.0.1:9999, or what the file says")
    parser.add_argument(
        "--conf-file", type=Path, metavar="FILE.toml", help="streams, limits, security: conf/broker.toml"
    )


def run(args: argparse.Namespace) -> int:
    with stop_on_signals() as stop:
        return run_broker(args.bind, args.conf_file, stop=stop, encode_kept=lambda event: broker_event(*event))
