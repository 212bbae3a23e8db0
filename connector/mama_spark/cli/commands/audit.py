"""``mama audit``: whether the messages that a flight log says are stored are, each once."""

from __future__ import annotations

import argparse
import sys

from ...audit.audit import ago, audit, delete
from ...audit.comparison import MARGIN, FlightSelection
from ...console.arguments import add_storage, add_transport, duration_argument, options, pairs
from ...console.output import print_tables, table_of
from ...console.progress import Progress
from ...contracts.errors import ConfigError
from ...options import SubscribeOptions, command

DESCRIPTION = (
    "Compare the flight log at PATH with the streams: every acknowledged message is stored, once, and no other message "
    "has an id of these writes. Exit code 0: no findings; 1: findings; 2: not known."
)
_USE = command("audit", "topics", "wait_timeout")
_AGE = duration_argument()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("path", metavar="PATH", help="folder or URL of the flight log")
    parser.add_argument("--query", metavar="ID", help="only this query_id")
    parser.add_argument("--run", dest="run_id", metavar="ID", help="only this run_id: of a run, or of a batch write")
    parser.add_argument("--batch", type=int, metavar="N", help="only this batch_id: a micro-batch, or a txnVersion")
    parser.add_argument("--since", type=_AGE, metavar="AGE", help="only the events of the last 30m, 1h, 7d")
    parser.add_argument("--until", type=_AGE, metavar="AGE", help="only the events before that")
    parser.add_argument(
        "--foreign", action="store_true", help="report every message that the log lacks: no other program writes there"
    )
    parser.add_argument(
        "--later", type=_AGE, default=MARGIN, metavar="AGE",
        help="find copies that were stored up to 1h, 7d after the last event (default 10m)",
    )  # fmt: skip
    parser.add_argument("--delete-copies", action="store_true", help="delete later copies, after confirmation")
    parser.add_argument("--yes", action="store_true", help="with --delete-copies: without confirmation")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--limit", type=int, default=5, metavar="N", help="examples of each finding (default 5)")
    add_storage(parser)
    add_transport(parser, "mamasub", positional=False)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, 1 with findings, or 2 when nobody can tell.

    :raises ConfigError: a wrong option; a stream that is not there; copies that cannot be deleted, or may not be
    :raises FlightLogError: there is no flight log
    """
    if args.yes and not args.delete_copies:
        raise ConfigError("--yes is for --delete-copies")
    o, storage = options(args, SubscribeOptions, _USE, topics=">"), dict(pairs(args.storage, "--storage"))
    selection = FlightSelection(args.query, args.run_id, args.batch, ago(args.since), ago(args.until))
    with Progress("auditing the streams", "messages") as progress:
        found = audit(
            args.path, storage, o, selection,
            foreign=args.foreign, later=args.later, limit=args.limit, on_read=progress.add,
        )  # fmt: skip
    if args.json:
        print(found.json(), flush=True)
    else:
        tables = [table_of(title, rows, names) for title, rows, names in found.tables()]
        print_tables(found.text(), tables, "\n".join(found.head()))
    if args.delete_copies and found.copies:
        what = f"{len(found.copies):,} later copies from {', '.join(dict.fromkeys(name for name, *_ in found.copies))}"
        if not args.yes:
            _ask(f"delete {what}? [y/N] ")
        delete(o, found)
        print(f"deleted {what}", file=sys.stderr if args.json else sys.stdout)
    return found.exit_code


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("--delete-copies asks before it deletes; without a terminal, give --yes")
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was deleted")
