"""``mama top``: sources, publishers, readers and streams as they are now."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing

from ...console.arguments import add_transport, duration_argument, transport
from ...console.output import print_tables, printable
from ...contracts.aligned import aligned
from ..top.collector import Collector
from ..top.model import COLUMNS, LiveModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_transport(parser, "mamadiscovery", "; tango=true: the devices of a recorder's log")
    parser.add_argument("--once", action="store_true", help="print the state after one interval, and end")
    parser.add_argument("--json", action="store_true", help="with --once: one line of JSON")
    parser.add_argument(
        "--interval", type=duration_argument(), default="1s", metavar="DURATION",
        help="interval of the requests (default 1s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    once = args.once or args.json
    if not once:
        from ..top.app import LiveViewApp  # before it connects: it may not be installed
    with closing(Collector(dict(transport(args)), LiveModel())) as collector:
        if once:
            _print_once(collector, args.interval, args.json)
        else:
            LiveViewApp(collector, args.interval).run()
    return 0


def _print_once(collector: Collector, interval: float, as_json: bool) -> None:
    """Two rounds: a rate needs the time between them."""
    collector.collect()
    time.sleep(interval)
    collector.collect()
    model = collector.model
    missing = {"without_discovery": collector.without_discovery, "without_streams": collector.without_streams}
    if as_json:
        fields = {"url": collector.name, **model.tables(), **{name: text for name, text in missing.items() if text}}
        print(json.dumps(fields, ensure_ascii=False))
        return
    totals = [
        f"{name.replace('_per_second', '/s').replace('_', ' ')} {number:,}" for name, number in model.totals().items()
    ]
    print("  ".join([collector.name, *totals]))
    for text in missing.values():
        if text:
            print(printable(text))
    for name, columns in COLUMNS.items():
        rows = [[printable(cell) for cell in row] for row in model.table(name)]
        if rows:
            lines = ["", f"{name}:", *(f"  {line}" for line in aligned([columns, *rows]))]
            print_tables("\n".join(lines), [(name, columns, rows)])
