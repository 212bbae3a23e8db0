"""``mama events``: shows events of publishers, topics and readers as they arrive."""

from __future__ import annotations

import argparse
from contextlib import closing

from ...console import discovery_follow as follow
from ...console.arguments import add_transport, transport
from ...console.output import printable
from ...mama.discovery.discovery_rows import GAP, PUBLISHER, DiscoveryRow
from ...mama.messages.event_records import FIELDS, TOPIC
from ...options import command

_USE = command("events", *follow.TAKES, "advisories")
_COUNTS = ("taken", "acked", "failed", "in_flight")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_transport(parser, "mamadiscovery")
    parser.add_argument(
        "--from", dest="begin", choices=("latest", "earliest"), default="latest",
        help="earliest: what is still kept comes first (default: latest)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one line of JSON an event")


def run(args: argparse.Namespace) -> int:
    with closing(follow.DiscoveryFollower.of(dict(transport(args)), _USE)) as follower:
        at = follower.initial_offset(args.begin)
        follow.say_changes(follower, at, (PUBLISHER, TOPIC, GAP), follow.as_json if args.json else line_of)
    return 0


def line_of(row: DiscoveryRow) -> str:
    if row.kind == GAP:
        return f"{follow.clock(row)}  gap        records {row.gap_from} to {row.gap_to} of {row.origin} were lost"
    what = f"{follow.clock(row)}  {row.kind.ljust(9)}  {printable(row.event)}"
    reason = " ".join(str(part) for part in (row.status, row.code) if part is not None)
    more = row.capabilities or {}
    numbers = [f"{more[FIELDS[name][0]]} {name.replace('_', ' ')}" for name in _COUNTS if FIELDS[name][0] in more]
    source = f"({follow.shown_source(row)})" if row.source_name else ""
    texts = [row.topic or "", source, ", ".join(numbers), reason, row.info or ""]
    return "  ".join([what, *(printable(text) for text in texts if text)])
