"""The result of a campaign as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tests.campaign.faults import FAULTS
from tests.campaign.rounds import Round

_HEAD = (
    "| fault | broker | ids | rounds | strikes | rows | lost | doubled | unaccounted |\n"
    "|---|---|---|--:|--:|--:|--:|--:|--:|\n"
)


def markdown(rounds: Sequence[Round]) -> str:
    """Rounds added up by fault, broker and ids."""
    groups: dict[tuple[str, str, bool], list[Round]] = defaultdict(list)
    for one in rounds:
        groups[one.fault.name, one.configuration.bridge, one.configuration.ids].append(one)
    names = [fault.name for fault in FAULTS]
    lines = [
        _line(fault, bridge, "on" if ids else "off", groups[fault, bridge, ids])
        for fault, bridge, ids in sorted(groups, key=lambda key: (names.index(key[0]), key[1], not key[2]))
    ]
    for ids in (True, False):
        some = [one for one in rounds if one.configuration.ids is ids]
        lines.append(_line("**all**", "all", "on" if ids else "off", some))
    return _HEAD + "".join(lines)


def _line(fault: str, bridge: str, ids: str, rounds: list[Round]) -> str:
    found = [one.findings for one in rounds]
    counts = (
        len(rounds),
        sum(one.strikes for one in rounds),
        *(sum(getattr(f, name) for f in found) for name in ("rows", "lost", "doubled", "unaccounted")),
    )
    return f"| {fault} | {bridge} | {ids} | " + " | ".join(f"{count:,}" for count in counts) + " |\n"
