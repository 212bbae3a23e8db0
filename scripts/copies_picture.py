"""Draw where a packed row is copied between Spark and the server: ``python -m scripts.copies_picture``."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "copies.svg"
#: Pixels: of a box, from one box to the next, from one road to the next, and the width of the picture.
WIDTH, HEIGHT, STEP, ROAD, WHOLE = 112, 40, 208, 178, 1000
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1b1b1f; text-anchor: middle } .note { font-size: 11px }
.title { text-anchor: start; font-weight: 600 } .copy { font-weight: 600; fill: #b3261e }
rect { fill: #f4f4f8; stroke: #8a8a99 } .worker { fill: none; stroke-dasharray: 5 4 }
path { fill: none; stroke: #8a8a99 } path.copy { stroke: #b3261e; stroke-width: 3 } marker path { fill: #8a8a99 }
marker.copy path { fill: #b3261e; stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #e6e6ec } rect { fill: #26262e } .worker { fill: none }
.copy { fill: #ff8a80 } path.copy { fill: none; stroke: #ff8a80 } marker.copy path { fill: #ff8a80 } }"""


class Box(NamedTuple):
    """A place in memory.

    :ivar notes: lines below it
    :ivar step: how bytes come to it from the box before
    """

    name: str
    notes: tuple[str, ...] = ()
    step: str = ""


class Road(NamedTuple):
    """:ivar worker: number of the first of the two boxes in a Python worker"""

    title: str
    worker: int
    boxes: tuple[Box, ...]


COPY = "one copy"
ROADS = (
    Road("Publishing packs", 1, (
        Box("Spark's JVM"),
        Box("Arrow batch", ("line feeds, ids:", "read in place"), "pyarrow"),
        Box("payloads", ("of a block: 16 MiB", "cut together"), COPY),
        Box("kernel", (), "sendmsg"),
        Box("NATS server", (), "socket"),
    )),
    Road("Reading packs", 2, (
        Box("NATS server"),
        Box("kernel", (), "socket"),
        Box("read buffers", ("messages are views,", "checked in place"), "recv"),
        Box("rows of a batch", ("of 4 MiB", "of messages"), COPY),
        Box("Spark's JVM", (), "IPC writer"),
    )),
)  # fmt: skip


def arrow(left: float, right: float, y: float, step: str) -> list[str]:
    kind = "copy" if step == COPY else "plain"
    return [
        f'<path class="{kind}" marker-end="url(#{kind})" d="M{left:g} {y:g}H{right - 3:g}"/>',
        f'<text class="{kind} note" x="{(left + right) / 2:g}" y="{y - 8:g}">{step}</text>',
    ]


def svg() -> str:
    """The picture."""
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WHOLE} {ROAD * len(ROADS)}" role="img">',
        "<title>Where a packed row is copied between Spark and the NATS server</title>",
        f"<style>{STYLE}</style>",
        *(
            f'<defs><marker id="{kind}" class="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse"'
            ' markerWidth="10" markerHeight="10" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
            for kind in ("plain", "copy")
        ),
    ]
    for number, road in enumerate(ROADS):
        places = [(box, 26 + at * STEP) for at, box in enumerate(road.boxes)]
        top = number * ROAD + 56
        left = places[road.worker][1] - 14
        drawn += [
            f'<text class="title" x="26" y="{top - 30}">{road.title}</text>',
            f'<rect class="worker" x="{left}" y="{top - 22}" width="{STEP + WIDTH + 28}" height="112" rx="8"/>',
            f'<text class="note" x="{left + (STEP + WIDTH + 28) / 2:g}" y="{top - 28}">Python worker</text>',
        ]
        for (_, x), (box, to_x) in pairwise(places):
            drawn += arrow(x + WIDTH, to_x, top + HEIGHT / 2, box.step)
        for box, x in places:
            drawn += [
                f'<rect x="{x}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>',
                f'<text x="{x + WIDTH / 2:g}" y="{top + 25}">{box.name}</text>',
                *(
                    f'<text class="note" x="{x + WIDTH / 2:g}" y="{top + HEIGHT + 18 + 15 * line}">{note}</text>'
                    for line, note in enumerate(box.notes)
                ),
            ]
    return "\n".join([*drawn, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
