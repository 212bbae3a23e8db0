"""``mama report``: the report page of a flight log."""

from __future__ import annotations

import argparse
import json
import webbrowser
from datetime import timedelta

from ...console.arguments import add_storage, duration_argument, pairs
from ...console.progress import Progress
from ...report.data import PASSES
from ...report.page import report
from ...report.verdict import headline, verdict

DESCRIPTION = "Write an HTML page of the flight log at PATH: rates, latencies, failures, topics."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("path", metavar="PATH", help="folder or URL of the flight log")
    parser.add_argument("--run", dest="run_id", metavar="ID", help="only this run_id")
    parser.add_argument(
        "--since", type=duration_argument(), metavar="AGE", help="only the events of the last 30m, 1h, 7d"
    )
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the page (default report.html)")
    parser.add_argument("--json", action="store_true", help="print the totals as one line of JSON")
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page of the report; exit code 0.

    :raises ConfigError: a storage option that is none, or the file cannot be written
    :raises FlightLogError: there is no flight log
    """
    since = None if args.since is None else timedelta(seconds=args.since)
    storage = dict(pairs(args.storage, "--storage"))
    with Progress("reading the flight log", "passes", PASSES) as progress:
        made = report(args.path, run=args.run_id, since=since, storage=storage, on_pass=progress.add)
    target = made.save(args.output)
    if args.json:
        fields = {"headline": headline(made.data), "state": verdict(made.data), "page": str(target), **made.data.totals}
        print(json.dumps(fields, ensure_ascii=False))
    else:
        print(f"{headline(made.data)} The report is {target}")
    if args.open and not webbrowser.open(target.as_uri()):
        print("no browser was found; open the file yourself")
    return 0
