"""Draw the pictures of the explanations: ``python -m scripts.drawn_pictures --write`` or ``--check``.

Each picture is a function that returns its lines of SVG. Colours follow the reader's scheme, light or dark; so does the
background, because a page may have one scheme only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "explanation"
#: Pixels: width of every picture, of a box, and its height.
WHOLE, WIDTH, HEIGHT = 1000, 160, 40
STYLE = """svg { background: #fff }
text { font: 13px system-ui, sans-serif; fill: #1b1b1f; text-anchor: middle } .note { font-size: 11px }
.title { text-anchor: start; font-weight: 600 } .strong { font-weight: 600; fill: #b3261e }
rect { fill: #f4f4f8; stroke: #8a8a99 } .frame { fill: none; stroke-dasharray: 5 4 }
path { fill: none; stroke: #8a8a99 } path.strong { fill: none; stroke: #b3261e; stroke-width: 3 }
marker path { fill: #8a8a99 } marker.strong path { fill: #b3261e; stroke: none } .life { stroke-dasharray: 4 4 }
@media (prefers-color-scheme: dark) { svg { background: #1b1b1f } text { fill: #e6e6ec } rect { fill: #26262e }
.frame { fill: none } .strong { fill: #ff8a80 }
path.strong { fill: none; stroke: #ff8a80 } marker.strong path { fill: #ff8a80 } }"""

Lines = list[str]
#: A place in pixels.
Point = tuple[float, float]


def text(at: Point, words: str, kind: str = "note") -> str:
    return f'<text class="{kind}" x="{at[0]:g}" y="{at[1]:g}">{words}</text>'


def box(left: float, top: float, name: str, *notes: str, width: float = WIDTH) -> Lines:
    """A place or a step, with lines of notes below."""
    middle = left + width / 2
    return [
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{HEIGHT}" rx="5"/>',
        text((middle, top + 25), name, "name"),
        *(text((middle, top + HEIGHT + 16 + 15 * line), note) for line, note in enumerate(notes)),
    ]


def frame(left: float, top: float, width: float, height: float, name: str, shift: float = 8) -> Lines:
    """What a process, thread or machine holds, with its name above."""
    return [
        f'<rect class="frame" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="8"/>',
        text((left + shift, top - 7), name, "note title"),
    ]


def arrow(*way: Point, words: str = "", at: Point | None = None, kind: str = "plain") -> Lines:
    """A line through the points of ``way``.

    :param at: where the words are; above the middle of the first part of the way, if None
    """
    path = f'<path class="{kind}" marker-end="url(#{kind})" d="M' + "L".join(f"{x:g} {y:g}" for x, y in way) + '"/>'
    place = at or ((way[0][0] + way[1][0]) / 2, way[0][1] - 8)
    return [path, *([text(place, words, f"{kind} note")] if words else [])]


def copies() -> Lines:
    """Where a packed row is copied between Spark and the NATS server"""
    width, step, copied = 112, 208, "one copy"
    roads = (
        ("Publishing packs", 1, (
            ("", "Spark's JVM"), ("pyarrow", "Arrow batch", "line feeds, ids:", "read in place"),
            (copied, "payloads", "of a block: 16 MiB", "cut together"),
            ("sendmsg", "kernel"), ("socket", "NATS server"),
        )),
        ("Reading packs", 2, (
            ("", "NATS server"), ("socket", "kernel"),
            ("recv", "read buffers", "messages are views,", "checked in place"),
            (copied, "rows of a batch", "of 4 MiB", "of messages"), ("IPC writer", "Spark's JVM"),
        )),
    )  # fmt: skip
    drawn: Lines = []
    for number, (title, worker, boxes) in enumerate(roads):
        top = number * 178 + 56
        places = [26 + at * step for at in range(len(boxes))]
        drawn.append(text((26, top - 30), title, "title"))
        drawn += frame(places[worker] - 14, top - 22, step + width + 28, 112, "Python worker")
        for (left, right), (by, *_) in zip(pairwise(places), boxes[1:], strict=True):
            y = top + HEIGHT / 2
            drawn += arrow((left + width, y), (right - 3, y), words=by, kind="strong" if by == copied else "plain")
        for left, (_, name, *notes) in zip(places, boxes, strict=True):
            drawn += box(left, top, name, *notes, width=width)
    return drawn


def overview() -> Lines:
    """The three formats, the middleware and the flight log"""
    top, low, half = 20, 120, HEIGHT / 2
    return [
        *box(20, top, "DataFrame", width=120),
        *arrow((140, top + half), (207, top + half)),
        *box(210, top, "mamapub", "a publisher for each partition"),
        *arrow((370, top + half), (457, top + half), words="messages"),
        *box(460, top, "middleware", "NATS JetStream, Malamute, ...", width=200),
        *arrow((660, top + half), (777, top + half)),
        *box(780, top, "mamasub", "messages as rows", width=200),
        *arrow((720, top + half), (720, low + half), (777, low + half)),
        *box(780, low, "mamadiscovery", "sources, publishers, readers as rows", width=200),
        *arrow((290, top + 62), (290, low - 3), words="outcome of each row", at=(350, low - 14)),
        *box(210, low, "flight log", "a Delta table"),
    ]


def one_write() -> Lines:
    """One write, from row to report"""
    first, second, third, fourth, outside = 34, 224, 414, 604, 826
    drive, encode, send, settle, commit = 40, 168, 308, 432, 576
    down, half = first + WIDTH / 2, HEIGHT / 2
    chain: Lines = []
    for top, places in (
        (encode, (first, second, third, fourth)),
        (send, (first, second, third)),
        (settle, (first, second)),
    ):
        for left, right in pairwise(places):
            chain += arrow((left + WIDTH, top + half), (right - 3, top + half))
    return [
        *frame(14, drive - 14, 770, 80, "driver"),
        *box(first, drive, "options, columns", "spark/sink/data_source.py"),
        *arrow((down, drive + 66), (down, encode - 3), words="SinkJob (spark/sink/job.py), pickled",
               at=(down + 104, encode - 32)),
        *frame(14, encode - 18, 770, 362, "task on an executor: spark/sink/partition_writer.py", 400),
        *box(first, encode, "rows to messages", "sink/encoding/row_encoder.py"),
        *box(second, encode, "bad rows, doubled ids", "sink/marks.py"),
        *box(third, encode, "stored rows", "sink/match.py (exactlyOnce)"),
        *box(fourth, encode, "packs, ids, headers", "sink/packs.py, last_form.py"),
        *chain,
        *arrow((684, encode + 62), (684, send - 54), (down, send - 54), (down, send - 3), words="batches of columns",
               at=(420, send - 60)),
        *frame(24, send - 14, 564, 76, "thread: publishing/batch_publisher.py", 210),
        *box(first, send, "window", "publishing/window/window.py"),
        *box(second, send, "send loop", "publishing/window/send_loop.py"),
        *box(third, send, "bridge", "contracts/bridge.py"),
        *box(outside, send, "broker"),
        *arrow((third + WIDTH, send + 12), (outside - 3, send + 12), words="messages", at=(680, send + 4)),
        *arrow((outside, send + 30), (third + WIDTH + 3, send + 30), words="acknowledgements", at=(680, send + 46)),
        *arrow((down, send + 62), (down, settle - 3), words="outcome of each message", at=(down + 74, settle - 26)),
        *box(first, settle, "outcomes", "sink/outcome_recorder.py", "sink/outcomes.py"),
        *box(second, settle, "Parquet parts", "thread: flightlog/staging.py"),
        *box(outside, settle, "storage of the log"),
        *arrow((second + WIDTH, settle + half), (outside - 3, settle + half), words="where they will stay"),
        *frame(14, commit - 14, 770, 80, "driver", 330),
        *arrow((down, settle + 78), (down, commit - 3), words="PartitionReport: file names, counts",
               at=(down + 104, commit - 24)),
        *box(first, commit, "commit", "flightlog/commit.py"),
        *box(outside, commit, "flight log (Delta)", "mama report, SQL"),
        *arrow((first + WIDTH, commit + half), (outside - 3, commit + half),
               words="dead letters, then all parts in one Delta commit"),
        *arrow((outside + WIDTH / 2, settle + HEIGHT), (outside + WIDTH / 2, commit - 3)),
    ]  # fmt: skip


def window() -> Lines:
    """The window of a task: messages on their way, their tokens, and what is kept until the outcome"""
    left, cell, top = 292, 64, 50
    states = ("acked", "refused", "no answer", "sent", "sent")
    cells = [
        line
        for number, state in enumerate(states)
        for line in box(left + number * (cell + 10), top, str(18 + number), state, width=cell)
    ]
    middle = left + (5 * cell + 40) / 2
    return [
        *box(20, top, "messages", width=140),
        *arrow((160, top + 20), (left - 19, top + 20), words="admitted"),
        text((218, top + 38), "until maxInFlight,"), text((218, top + 53), "again at"),
        text((218, top + 68), "refillAllowedAt"),
        *frame(left - 16, top - 20, 5 * cell + 72, 142, "window: a token for each send"),
        *cells,
        text((middle, top + 86), "kept of each message until its outcome:"),
        text((middle, top + 102), "id, topic, headers, payload, sends, time of the first send"),
        *box(840, top, "broker", width=140),
        *arrow((left + 376, top + 8), (837, top + 8), words="token 22: id, message"),
        *arrow((840, top + 30), (left + 379, top + 30), words="ack of token 18: sequence", at=(754, top + 46)),
        *arrow((left + 180, top + 122), (left + 180, 214), (910, 214), (910, top + HEIGHT + 3), kind="strong"),
        text((690, 232), "no answer for waitTimeout, or the connection is lost:", "strong note"),
        text((690, 248), "sent again, with the same id, as token 23", "strong note"),
        *arrow((left + 32, top + 122), (left + 32, 244), (163, 244), words="ack of any send", at=(240, 236)),
        *arrow((left + 106, top + 122), (left + 106, 268), (163, 268),
               words="refused for good, or retryDeadline is over", at=(282, 284)),
        *box(20, 236, "outcome", "one for each message", width=140),
        text((690, 282), "503: a pause, then at most 64 messages until one is acknowledged"),
        text((690, 298), "429: the same, and the window is halved, and grows again"),
    ]  # fmt: skip


def cluster() -> Lines:
    """Where the parts of a cluster run"""
    tasks: Lines = []
    for number, left in enumerate((40, 250)):
        tasks += [
            *box(left, 222, f"task {number + 1}", "Python worker", width=190),
            *box(left, 296, "publisher", "thread, with a connection", width=190),
            *box(left, 370, "staging", "thread", width=190),
            *arrow((left + 95, 280), (left + 95, 293)),
            *arrow((left + 95, 354), (left + 95, 367)),
        ]
    return [
        *frame(20, 30, 440, 84, "driver"),
        *box(40, 44, "plan", "options are checked", width=190),
        *box(250, 44, "commit", "of a whole batch", width=190),
        *arrow((100, 114), (100, 201), words="SinkJob", at=(72, 150)),
        *arrow((320, 204), (320, 117), words="PartitionReport", at=(368, 150)),
        *frame(20, 204, 440, 234, "executors: a task for each partition", 110),
        *tasks,
        *frame(640, 30, 340, 160, "storage that driver and all executors see"),
        *box(655, 44, "Parquet parts", "of tasks", width=150),
        *box(820, 44, "flight log", "Delta table", width=145),
        *box(820, 116, "dead letters", "Delta table", width=145),
        *arrow((460, 64), (637, 64), words="commit"),
        *arrow((460, 250), (550, 250), (550, 136), (637, 136), words="outcomes", at=(592, 128)),
        *frame(640, 262, 340, 118, "broker: three NATS servers"),
        *box(655, 284, "replica", width=95),
        *box(763, 284, "leader", "of the stream", width=95),
        *box(870, 284, "replica", width=95),
        *arrow((460, 300), (637, 300), words="messages"),
        *arrow((640, 324), (463, 324), words="acknowledgements", at=(550, 340)),
        text((810, 366), "streams: topics, MAMA_BATCHES, discovery"),
    ]  # fmt: skip


def exactly_once() -> Lines:
    """Exactly once: a first attempt that is killed, and its repetition"""
    task, markers, topics = 175, 500, 825
    sides = {"task": task, "markers": markers, "topics": topics}
    steps = (
        (118, task, markers, "read batch and task marker: of another batch"),
        (150, task, topics, "last sequence? the leader says 1000"),
        (182, task, markers, "store: batch 7 begins behind 1000"),
        (206, markers, task, "stored"),
        (238, task, topics, "publish rows 1, 2, 3, 4 …"),
        (360, task, markers, "read the markers: this batch"),
        (392, task, markers, "take over, when nobody else renews"),
        (424, task, topics, "ids of batch 7 in 1001 … last, headers only"),
        (456, topics, task, "ids of rows 1, 2, 4"),
        (520, task, topics, "publish row 3"),
        (546, topics, task, "stored"),
        (592, task, markers, "release"),
    )
    names = {"task": "task of one partition", "markers": "stream MAMA_BATCHES", "topics": "stream of the topics"}
    drawn = [*frame(20, 78, 960, 204, "first attempt"), *frame(20, 320, 960, 292, "repetition")]
    for side, middle in sides.items():
        drawn += [*box(middle - 90, 14, names[side], width=180), f'<path class="life" d="M{middle} 54V612"/>']
    for y, start, end, words in steps:
        kind = "strong" if words == "publish row 3" else "plain"
        place = ((task + markers) / 2 if markers in (start, end) else (markers + topics) / 2, y - 6)
        drawn += arrow((start, y), (end - 3 if end > start else end + 3, y), words=words, at=place, kind=kind)
    return [
        *drawn,
        '<path class="strong" d="M165 252l20 20m0-20l-20 20"/>',
        text((200, 268), "killed: rows 1, 2 and 4 are stored, row 3 is not", "strong note title"),
        text((WHOLE / 2, 304), "a second or a month later; the broker has forgotten all ids"),
        text((200, 484), "rows 1, 2, 4: settled as acked, duplicate, with their sequence", "note title"),
        text((200, 570), "Spark commits the batch", "note title"),
    ]


#: Name -> what draws it, and its height in pixels.
PICTURES: dict[str, tuple[Callable[[], Lines], int]] = {
    "cluster": (cluster, 452),
    "copies": (copies, 356),
    "exactly-once": (exactly_once, 626),
    "one-write": (one_write, 656),
    "overview": (overview, 190),
    "window": (window, 316),
}


def svg(name: str) -> str:
    """The text of a picture's file."""
    draw, height = PICTURES[name]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WHOLE} {height}" role="img">',
        f"<title>{draw.__doc__}</title>",
        f"<style>{STYLE}</style>",
        *(
            f'<defs><marker id="{kind}" class="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse"'
            ' markerWidth="10" markerHeight="10" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
            for kind in ("plain", "strong")
        ),
        *draw(),
        "</svg>\n",
    ])  # fmt: skip


def main() -> int:
    """Exit code: 1 if a picture is out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    if parser.parse_args().write:
        for name in PICTURES:
            (FOLDER / f"{name}.svg").write_text(svg(name), encoding="utf-8")
        return 0
    old = [name for name in PICTURES if (FOLDER / f"{name}.svg").read_text(encoding="utf-8") != svg(name)]
    for name in old:
        print(f"docs/explanation/{name}.svg is out of date: make docs", file=sys.stderr)
    return bool(old)


if __name__ == "__main__":
    sys.exit(main())
