"""``mama serve``: a NATS server with JetStream and a demo stream, until Ctrl-C."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...console.output import say_as
from ...console.signals import stop_on_signals
from ..server.serve import run as run_server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "of the clients (default: %(default)s, which every format connects to without a url; 0: a free one)"
    parser.add_argument("--port", type=int, default=4222, help=text)
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')
    parser.add_argument("--store", type=Path, help="folder that keeps the streams (default: a temporary one)")


def run(args: argparse.Namespace) -> int:
    with stop_on_signals() as stop:
        run_server(port=args.port, store=args.store, stop=stop, say=say_as(args.json))
    return stop.exit_code
