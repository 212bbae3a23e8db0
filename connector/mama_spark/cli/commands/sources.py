"""``mama sources``: lists the sources that announce themselves, and their changes."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from ...console import discovery_follow as follow
from ...console.arguments import add_transport, transport
from ...console.output import print_tables, printable
from ...contracts.aligned import aligned
from ...mama.discovery.discovery_rows import GAP, SOURCE, DiscoveryRow
from ...options import command

_USE = command("sources", *follow.TAKES, "advisories")

_COLUMNS = ("SOURCE", "ID", "STATE", "DATA", "RATE", "TIMELINESS", "DICTIONARY", "SINCE (UTC)", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_transport(parser, "mamadiscovery")
    parser.add_argument("--once", action="store_true", help="only the sources there are now")
    parser.add_argument("--json", action="store_true", help="one line of JSON a source or change")
    parser.add_argument("--create-streams", action="store_true", help="first make the streams that are missing (NATS)")


def run(args: argparse.Namespace) -> int:
    as_json = args.json
    with closing(follow.DiscoveryFollower.of(dict(transport(args)), _USE)) as follower:
        if args.create_streams:
            follower.create_streams()
        # the offset before the image, so that nothing is between the two
        at = None if args.once else follower.initial_offset("latest")
        image = follower.image()
        if as_json:
            for row in image:
                follow.say(follow.as_json(row))
        else:
            print_tables("\n".join(table(image)), [("", _COLUMNS, [_cells(row) for row in image])])
            sys.stdout.flush()
        if at is not None:
            follow.say_changes(follower, at, (SOURCE, GAP), follow.as_json if as_json else line_of)
    return 0


def table(rows: list[DiscoveryRow]) -> list[str]:
    lines = aligned([_COLUMNS, *(_cells(row) for row in rows)])
    return [*lines, f"{len(rows):,} source{'' if len(rows) == 1 else 's'}"]


def _cells(row: DiscoveryRow) -> tuple[str, ...]:
    texts = (row.source_state, row.source_data_state, row.source_qos_rate, row.source_qos_timeliness,
             row.source_data_dict)  # fmt: skip
    return (
        printable(row.source_name or ""),
        "" if row.source_id is None else str(row.source_id),
        *(printable(text or "-") for text in texts),
        "" if row.event_time is None else f"{follow.instant(row.event_time):%Y-%m-%d %H:%M:%S}",
        printable(row.info or ""),
    )


def line_of(row: DiscoveryRow) -> str:
    if row.kind == GAP:
        return f"{follow.clock(row)}  gap      records {row.gap_from} to {row.gap_to} of {row.origin} were lost"
    states = " ".join(text for text in (row.source_state, row.source_data_state) if text)
    texts = [follow.shown_source(row), printable(states), printable(row.info or "")]
    return f"{follow.clock(row)}  {row.event.ljust(10)} {'  '.join(text for text in texts if text)}"
