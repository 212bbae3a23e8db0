"""``mama check``: tries connection, permission, stream and tables of a job without publishing."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...console.arguments import add_transport, completed, transport
from ...console.exit_codes import FINE, WRONG
from ...console.output import print_marked
from ...contracts.errors import MamaError
from ...contracts.redaction import redact
from ...contracts.topics import topic_head
from ...flightlog.table_check import check_dead_letters, check_flight_log
from ...options import ANY_WRITE, SinkOptions
from ...options.conf_file import as_options, load
from ...options.declare import require
from ...registry import check_transport

_MASTER = re.compile(r"\s*spark\.master\s*[=:\s]\s*(\S.*?)\s*$")  # a line of Java properties


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--conf-file", metavar="FILE.toml", help="the job's configuration")
    parser.add_argument(
        "--master",
        metavar="MASTER",
        help="Spark master of the job, such as spark://host:7077 (default: that of spark-defaults.conf): whether its "
        "executors can see the folders of the tables",
    )
    parser.add_argument(
        "--table",
        metavar="PATH",
        help="a Delta table that follows a bucket, as jobs/mirror.py writes it: where it differs from -o bucket=NAME",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON for each thing that was tried")
    add_transport(parser, "mamapub")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 when something is not fine.

    :raises ConfigError: a wrong option
    """
    options = _options(args)
    require(
        args.table is None or options.bucket is not None,
        "argument --table needs the bucket to compare with: -o bucket=NAME",
    )
    found = check_transport(options.at_log() if options.log is not None else options, _topics(options))
    found += _tables(options, args.master or _default_master())
    if args.table is not None and all(fine for fine, _ in found):
        found += _compared(args.table, options)
    for fine, text in found:
        shown = redact(" ".join(text.split()))
        if args.json:
            print(json.dumps({"ok": fine, "text": shown}, ensure_ascii=False), flush=True)
        else:
            print_marked("ok" if fine else "BAD", shown)
    return FINE if all(fine for fine, _ in found) else WRONG


def _options(args: argparse.Namespace) -> SinkOptions:
    given = {} if args.conf_file is None else as_options(load(args.conf_file)["mamapub"])
    more = {name.lower(): value for name, value in transport(args)}
    merged = {name: value for name, value in given.items() if name.lower() not in more} | more
    full = completed(merged, SinkOptions, "storage.*")
    use = ANY_WRITE if args.table is None else replace(ANY_WRITE, is_job=False)  # storage.* may be of that table
    return SinkOptions.parse(full.options, use, full.shared).with_tables_below(os.getcwd())


def _default_master() -> str | None:
    """``spark.master`` where ``spark-submit`` finds it; None = not there."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines() if folder else []
    except (OSError, UnicodeDecodeError):
        return None
    found = [line[1] for line in map(_MASTER.match, lines) if line]
    return found[-1] if found else None


def _topics(options: SinkOptions) -> list[str]:
    topics = [topic_head(options.topic_prefix) + options.topic] if options.topic else []
    return topics + ([options.dead_letter_topic] if options.dead_letter_topic else [])


def _tables(options: SinkOptions, master: str | None) -> list[tuple[bool, str]]:
    log, dead_letters, storage = options.flight_log, options.dead_letter_table, options.storage_options
    found: list[tuple[bool, str]] = []
    if log is None:
        found.append((True, "flight log: off"))
    else:
        found += _table("flight log", lambda: check_flight_log(log, storage, options.flight_log_columns, master))
    if dead_letters is not None:
        found += _table("dead letters", lambda: check_dead_letters(dead_letters, storage, master))
    return found


def _compared(path: str, options: SinkOptions) -> list[tuple[bool, str]]:
    from ...audit.bucket_table import compare_with_bucket

    try:
        return compare_with_bucket(path, options)
    except MamaError as e:
        return [(False, f"table: {e}")]


def _table(name: str, check: Callable[[], list[str]]) -> list[tuple[bool, str]]:
    try:
        return [(True, f"{name}: {text}") for text in check()]
    except MamaError as e:
        return [(False, f"{name}: {e}")]
