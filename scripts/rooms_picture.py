"""Draw the rooms of the package and what each imports: ``python -m scripts.rooms_picture --write`` or ``--check``.

Rooms stand in the order of ``tests/test_architecture.py``, lowest at the bottom. An arrow goes from a room to one that
it imports, unless others lead there as well (the transitive reduction).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import LAYER, LAYERS, ROOT, ours

PICTURE = ROOT / "docs" / "explanation" / "rooms.svg"
#: Pixels: of a box, from one row to the next, from one box to the next, and the width of the picture.
WIDTH, HEIGHT, ROW, GAP, WHOLE = 104, 34, 78, 16, 860
STYLE = """svg { background: #fff } text { font: 13px system-ui, sans-serif; fill: #1b1b1f; text-anchor: middle }
rect { fill: #f4f4f8; stroke: #8a8a99 } path { fill: none; stroke: #8a8a99 }
@media (prefers-color-scheme: dark) { svg { background: #1b1b1f } text { fill: #e6e6ec } rect { fill: #26262e } }"""


def imported() -> dict[str, set[str]]:
    """Room -> the lower rooms that its modules import."""
    rooms = {room for layer in LAYERS for room in layer if room not in ("__init__", "lazy_names")}
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module in ours():
        names = (name.split(".")[1] for name in module.imports if name.startswith("mama_spark."))
        if module.package in rooms:
            found[module.package] |= {name for name in rooms.intersection(names) if LAYER[name] < LAYER[module.package]}
    return found


def below(room: str, edges: dict[str, set[str]]) -> set[str]:
    """All rooms that a room reaches."""
    return edges[room].union(*(below(other, edges) for other in edges[room]))


def reduced(edges: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """The imports that no others lead to."""
    for room, others in sorted(edges.items()):
        implied = set[str]().union(*(below(other, edges) for other in others))
        yield from ((room, other) for other in sorted(others - implied))


def svg() -> str:
    """The picture."""
    edges = imported()
    rows = [sorted(set(layer) & edges.keys()) for layer in reversed(LAYERS)]
    rows = [row for row in rows if row]
    place = {
        room: (WHOLE / 2 + (at - (len(row) - 1) / 2) * (WIDTH + GAP), 30 + number * ROW)
        for number, row in enumerate(rows)
        for at, room in enumerate(row)
    }
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WHOLE} {len(rows) * ROW}" role="img">',
        "<title>The rooms of mama_spark, and what each imports</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8"/></marker></defs>',
    ]
    for room, other in reduced(edges):
        (x, y), (to_x, to_y) = place[room], place[other]
        top, end = y + HEIGHT / 2, to_y - HEIGHT / 2
        bend = (end - top) / 2
        curve = f"M{x:g} {top:g}C{x:g} {top + bend:g} {to_x:g} {end - bend:g} {to_x:g} {end:g}"
        drawn.append(f'<path marker-end="url(#to)" d="{curve}"/>')
    for room, (x, y) in place.items():
        drawn += [
            f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>',
            f'<text x="{x:g}" y="{y + 5:g}">{room}</text>',
        ]
    return "\n".join([*drawn, "</svg>"]) + "\n"


def main() -> int:
    """Exit code: 1 if the picture is out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    if parser.parse_args().write:
        PICTURE.write_text(svg(), encoding="utf-8")
        return 0
    if PICTURE.read_text(encoding="utf-8") == svg():
        return 0
    print(f"{Path(PICTURE).relative_to(ROOT)} is out of date: make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
