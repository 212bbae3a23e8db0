"""``mama events``: what happens to publishers, topics and readers, as it comes."""

from __future__ import annotations

from collections.abc import Mapping

from ..mama.discovery.discovery_rows import GAP, PUBLISHER, DiscoveryRow
from ..mama.messages.event_records import TOPIC
from . import discovery_follow as follow


def run(given: Mapping[str, str], *, begin: str, as_json: bool) -> int:
    """
    :param given: options as of ``mamadiscovery``
    :param begin: ``earliest`` or ``latest``
    :raises MamaError: the place of discovery cannot be read
    """
    place = follow.DiscoveryFollower.of(given)
    try:
        for rows in place.changes(place.initial_offset(begin)):
            for row in rows:
                if row.kind in (PUBLISHER, TOPIC, GAP):
                    follow.say(follow.as_json(row) if as_json else line_of(row))
            if not rows and follow.reader_is_gone():
                return 0
    finally:
        place.close()
    return 0


def line_of(row: DiscoveryRow) -> str:
    """One event."""
    if row.kind == GAP:
        return f"{follow.clock(row)}  gap        records {row.gap_from} to {row.gap_to} of {row.origin} were lost"
    what = f"{follow.clock(row)}  {row.kind.ljust(9)}  {follow.printable(row.event)}"
    reason = " ".join(str(part) for part in (row.status, row.code) if part is not None)
    told = [row.topic or "", f"({follow.shown_source(row)})" if row.source_name else "", reason, row.info or ""]
    return "  ".join([what, *(follow.printable(text) for text in told if text)])
