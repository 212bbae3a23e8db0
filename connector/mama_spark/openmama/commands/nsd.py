"""``mama nsd``: a name server for OpenMAMA peers of the OZ bridge, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import sys

from ...console.output import say_as
from ...console.signals import stop_on_signals
from ...contracts.errors import OptionError
from ...options.urls import is_port, on_all_interfaces
from ..source.name_server import NameServer
from ..wire.settings import NAMING_PORT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--interface", default="127.0.0.1", metavar="ADDRESS", help="address to bind (default %(default)s)"
    )
    parser.add_argument(
        "-p", "--port", type=int, default=NAMING_PORT, help=f"port; 0: a free one (default {NAMING_PORT})"
    )
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')
    parser.add_argument("--advertise", metavar="HOST", help="where peers send to, with -i '*' (all interfaces)")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.

    :raises Unavailable: the port is in use
    """
    if not is_port(str(args.port)):
        raise OptionError(f"--port is from 0 to 65535, got {args.port}")
    if on_all_interfaces(args.interface):
        args.interface = "*"
        print("mama: OpenMAMA has no login: whoever reaches this machine can announce itself as a peer; name one "
              "interface by -i ADDRESS, or let a firewall decide", file=sys.stderr, flush=True)  # fmt: skip
    server = NameServer(args.interface, args.port, args.advertise)
    server.open()
    peers = f"oz://{server.address.removeprefix('tcp://')}"
    try:
        with stop_on_signals() as stop:
            say_as(args.json)(f"name server at {server.address}; peers use {peers} (Ctrl-C ends it)")
            server.run(stop.is_set)
    finally:
        server.close()
    return stop.exit_code
