"""``mama flights``: the summary of a flight log; ``sweep``: its orphaned parts; ``maintain``: its files."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta

from ...console.arguments import add_storage, duration_argument, pairs
from ...console.output import print_tables, table_of
from ...console.progress import Progress
from ...contracts.errors import ConfigError
from ...flightlog import reading
from ...flightlog.maintenance import ORPHAN_AGE, STEPS, adopt_orphans, maintain
from ...options.times import duration_or_none

USAGE = (
    "mama flights PATH [--failed | --shared-ids] [--json] [--all]\n"
    "       mama flights sweep PATH [--older-than 1d]\n"
    "       mama flights maintain PATH [--keep 30d] [--older-than 1d]"
)
DESCRIPTION = (
    "Summarize the flight log at PATH. sweep: add uncommitted parts of killed jobs. maintain: sweep, drop old rows, "
    "merge small files, write a checkpoint, remove unreferenced files."
)
_AGE = duration_argument(duration_or_none)
_KEEP = duration_argument()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage, parser.description = USAGE, DESCRIPTION
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folder or URL of the flight log")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--failed", action="store_true", help="the latest flights that failed or timed out")
    shown.add_argument(
        "--shared-ids", action="store_true", help="ids that several rows of a write share, of which a broker stores one"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--all", action="store_true", help="all topics, reasons and failed flights")
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="rows of each list without --all (default 20)"
    )
    parser.add_argument(
        "--older-than",
        type=_AGE,
        default=f"{ORPHAN_AGE.days}d",
        metavar="AGE",
        help="age of parts to add: 90m, 12h, 1d",
    )
    parser.add_argument("--keep", type=_KEEP, metavar="AGE", help="maintain: drop rows of days before (default: none)")
    parser.add_argument("--dry-run", action="store_true", help="sweep, maintain: show only")
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Execute ``mama flights``; exit code 0.

    :raises ConfigError: not one path, or a storage option that is none
    :raises FlightLogError: there is no flight log
    """
    storage = dict(pairs(args.storage, "--storage"))
    if args.paths[0] == "sweep" and len(args.paths) == 2:
        found = adopt_orphans(args.paths[1], storage, timedelta(seconds=args.older_than), args.dry_run)
        fields = {"parts": len(found.parts), "rows": found.rows, "version": found.version}
        print(json.dumps(fields) if args.json else found.text())
        return 0
    if args.paths[0] == "maintain" and len(args.paths) == 2:
        _maintain(args, storage)
        return 0
    if len(args.paths) != 1:
        raise ConfigError("usage: mama flights PATH, mama flights sweep PATH, or mama flights maintain PATH")
    if args.keep is not None:
        raise ConfigError("--keep is for mama flights maintain PATH")
    limit = 2**31 - 1 if args.all else args.limit
    if args.failed or args.shared_ids:
        find, text = (
            (reading.failed, reading.failed_text) if args.failed else (reading.shared_ids, reading.shared_ids_text)
        )
        rows = find(args.paths[0], storage, limit)
        if args.json:
            print(json.dumps(rows, ensure_ascii=False, default=str))
        else:
            columns = reading.failed_columns(rows) if args.failed else reading.SHARED_COLUMNS
            print_tables(text(rows), [table_of("", rows, columns)] if rows else [])
        return 0
    with Progress("reading the flight log", "passes", reading.PASSES) as progress:
        summary = reading.summarise(args.paths[0], storage, limit, progress.add)
    if args.json:
        print(summary.json())
    else:
        tables = [table_of(title, rows, names) for title, rows, names in summary.tables()]
        print_tables(summary.text(), tables, "\n".join(summary.head()))
    return 0


def _maintain(args: argparse.Namespace, storage: dict[str, str]) -> None:
    keep = None if args.keep is None else timedelta(seconds=args.keep)
    older_than = timedelta(seconds=args.older_than)
    with Progress("maintaining the flight log", "steps", STEPS) as progress:
        done = maintain(args.paths[1], storage, keep, older_than, args.dry_run, progress.add)
    print(json.dumps(done.json_fields()) if args.json else done.text())
