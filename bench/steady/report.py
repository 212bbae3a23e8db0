"""``python -m bench.steady.report RESULT.json``: keep a result of ``bench.steady``, and write its part of the page.

A result of some ways (``--only``) takes the place of these ways in the result that is kept.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..packed.report import about_kafka, middle
from ..pipe.ways import DURATIONS
from ..result import RESULTS, Result, latency_ratio, part, ratio, spread, values, write_part
from .ways import CODECS, FLIGHTS, PUBLISHING, READING, TYPED_FLIGHTS

KEPT = RESULTS / "steady-reference.json"
_SIZES = {100: "100 B", 1000: "1,000 B", FLIGHTS: "flights, JSON", TYPED_FLIGHTS: "flights, columns"}
#: Microseconds of processor time that grouping, packing, hashing, framing and writing took the client for a row of 1 kB
#: when the aim was set: half of it.
CLIENT_US = 4.1 / 2

MOST_OTHERS = 0.5  #: cores that others may use in a run whose processor time is shown
CODEC_AIM = 1.5  #: flights, our best codec to the best one of Kafka
#: What is compared: at which size, way, with which other, at least this ratio.
RATIOS = [
    (100, "lines", "kafka-tuned", 1.5), (100, "arrow", "kafka-tuned", 1.5),
    (100, "lines-tuned", "kafka-tuned", 1.5), (100, "arrow-tuned", "kafka-tuned", 1.5),
    (1000, "lines", "kafka-tuned", 1.0), (1000, "arrow", "kafka-tuned", 1.0),
    (1000, "lines-tuned", "kafka-tuned", 1.0), (1000, "arrow-tuned", "kafka-tuned", 1.0),
    (1000, "mamasub", "memory", 0.5),
    (100, "mamasub", "kafka-source", 3.0), (1000, "mamasub", "kafka-source", 1.5),
    (100, "message", "c-acks", 0.92), (100, "off", "c-acks-id", 0.90),
    (100, "message", "message-nolog", 0.95),
]  # fmt: skip


#: What a busy core leaves of the C program, and what mamapub reaches of that: way, C program, the same beside a loop.
BESIDE = [("message", "c-acks", "c-acks-beside"), ("off", "c-acks-id", "c-acks-id-beside")]


def _best(result: Result, names: Sequence[str], size: int) -> dict[int, float]:
    """The highest rate of each round."""
    each = [values(result, name, size) for name in names]
    rounds = set.intersection(*(set(found) for found in each))
    return {round_: max(found[round_] for found in each) for round_ in rounds}


def _codecs(result: Result) -> tuple[float | None, float | None]:
    """Flights: our best codec to the best one of Kafka, median of the rounds; and :func:`_cores` at the aim."""
    ours = _best(result, [f"lines-{codec}" for codec in CODECS], FLIGHTS)
    theirs = _best(result, [f"kafka-{codec}" for codec in CODECS], FLIGHTS)
    both = [ours[round_] / theirs[round_] for round_ in ours.keys() & theirs.keys()]
    each = [_cores(result, FLIGHTS, f"lines-{codec}", theirs, CODEC_AIM) for codec in CODECS]
    cores = min((one for one in each if one is not None), default=None)
    return (statistics.median(both) if both else None), cores


def _cores(result: Result, size: int, name: str, others: dict[int, float], aim: float) -> float | None:
    """Cores that a way would keep busy at the rate of the aim, median of the rounds: what its client and server take
    for a row, times that rate. More than the machine has are not to be had by less waiting, only by less work a row.

    :param others: round -> rate of what it is compared with
    """
    runs = [run for run in result["runs"] if (run["name"], run["size"]) == (name, size) and run["round"] in others]
    runs = [run for run in runs if run.get("other_cores", 0.0) <= MOST_OTHERS]
    found = [aim * others[run["round"]] * (run["client_us"] + run["server_us"]) / 1e6 for run in runs]
    return statistics.median(found) if found else None


def _stored(result: Result, name: str, size: int) -> float | None:
    """Bytes a row at the broker."""
    return middle({"runs": [*result["runs"], *result["cold"]]}, name, size, "stored_bytes_per_row")


def _quotient(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _add_batch(result: Result) -> float | None:
    runs = [run["durations_ms"]["addBatch"] for run in result.get("pipes", ()) if run["name"] == "log"]
    each = [statistics.median(batches) for batches in runs if batches]
    return statistics.median(each) if each else None


def _client(result: Result) -> float | None:
    """What publishing a row of 1 kB costs the client beyond what Spark takes to hand it to Python."""
    whole, handed = (middle(result, name, 1000, "client_us") for name in ("lines", "drop"))
    return None if whole is None or handed is None else whole - handed


def _micro(result: Result) -> float | None:
    ms = result.get("micro_batch_ms")
    return None if ms is None else ms["sink"] - ms["nothing"]


class Aim(NamedTuple):
    """:ivar cores: busy at the aim, as :func:`_cores` tells them"""

    what: str
    aim: str
    measured: float
    unit: str
    cores: float | None


def _aims(result: Result) -> list[Aim]:
    """Those that were measured."""
    found: list[tuple[str, str, float | None, str]] = []
    cores: dict[str, float | None] = {}
    for size, name, other, aim in RATIOS:
        what = f"{_SIZES[size]}: `{name}` to `{other}`"
        found.append((what, f"≥ {aim:g}", ratio(result, name, other, size), ""))
        cores[what] = _cores(result, size, name, values(result, other, size), aim)
    what = "flights, JSON: best codec to Kafka's best codec"
    codecs, cores[what] = _codecs(result)
    found.append((what, f"≥ {CODEC_AIM:g}", codecs, ""))
    for codec in CODECS:
        stored = [_stored(result, f"{way}-{codec}", FLIGHTS) for way in ("lines", "kafka")]
        found.append((f"flights, JSON: bytes stored a row to Kafka's, {codec}", "≤ 1.1", _quotient(*stored), ""))
    typed = _quotient(_stored(result, "typed-zstd", TYPED_FLIGHTS), _stored(result, "lines", FLIGHTS))
    found.append(("flights: bytes of typed rows, zstd, to JSON lines, not compressed", "≤ 0.15", typed, ""))
    what = "1,000 B: client, processor time a row of `lines` beyond `drop`"
    found.append((what, f"≤ {CLIENT_US:.2f} µs", _client(result), " µs"))
    for which in ("p50", "p99"):
        latency = latency_ratio(result.get("pipes", ()), "log", which)
        found.append((f"pipe, 1,000 messages/s: {which} to Kafka's", "≤ 0.8", latency, ""))
    found.append(("pipe, 1,000 messages/s: `addBatch`", "≤ 80 ms", _add_batch(result), " ms"))
    found.append(("micro-batch of ten rows, more than an empty sink", "≤ 20 ms", _micro(result), " ms"))
    return [Aim(what, aim, value, unit, cores.get(what)) for what, aim, value, unit in found if value is not None]


def aims(result: Result) -> list[str]:
    """A line an aim."""
    lines = [
        f"| {one.what} | {one.aim} | {one.measured:.2f}{one.unit} | {'' if one.cores is None else f'{one.cores:.2f}'} |"
        for one in _aims(result)
    ]
    return ["| what | aim | measured | cores busy at the aim |", "|---|---|---|---|", *lines]


def compared(result: Result) -> list[str]:
    """A line for the ways that are compared with the same one. What has a unit, and the pipe, are in their own parts
    of the page."""
    groups = dict[tuple[str, str], list[str]]()
    for one in _aims(result):
        row, _, what = one.what.partition(": ")
        way, _, other = what.partition(" to ")
        if not one.unit and not row.startswith("pipe") and not way.startswith("bytes"):
            groups.setdefault((other, row), []).append(f"{way} {one.measured:.2f}")
    lines = [f"| {other}, {row} | {', '.join(ways)} |" for (other, row), ways in groups.items()]
    return ["| compared with | ratio |", "|---|---|", *lines]


def beside_table(result: Result) -> list[str]:
    """A line a C program: what is left of it beside a loop that works as much as mamapub's client; none if it did not
    run."""
    lines = []
    for name, alone, beside in BESIDE:
        left, reached = ratio(result, beside, alone, 100), ratio(result, name, beside, 100)
        busy = [run["client_us"] * run["rate"] / 1e6 for run in result["runs"] if run["name"] == beside]
        if left is not None and reached is not None:
            lines.append(f"| `{alone}` | {statistics.median(busy):.2f} | {left:.2f} | `{name}`: {reached:.2f} |")
    if not lines:
        return []
    return [
        "## The C program beside a loop",
        "",
        "The C program takes hardly any of the two cores from the server. Here a process that has nothing to do with"
        " messages keeps as much of them busy as the client of `mamapub` does, Spark and its workers included.",
        "",
        "| C program | cores busy in clients | to the C program alone | `mamapub` to the C program beside the loop |",
        "|---|---|---|---|",
        *lines,
        "",
    ]


def _left_of_pipe(run: Result) -> dict[str, float]:
    """Latencies in milliseconds of a pipe whose source and sink take no time: a message that comes in each millisecond
    of a micro-batch waits for the next one, and for what Spark does in that before it calls the sink."""
    each = [
        dict(zip(DURATIONS, batch, strict=True)) for batch in zip(*map(run["durations_ms"].get, DURATIONS), strict=True)
    ]
    latencies = list[float]()
    for batch, after in pairwise(each):
        left = batch["triggerExecution"] - batch["addBatch"] - batch["latestOffset"]
        latencies += [wait + after["walCommit"] + after["queryPlanning"] for wait in range(1, left + 1)]
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def pipe_table(result: Result) -> list[str]:
    """A line a pipe: medians of the rounds; none if they did not run."""
    pipes = {name: [r for r in result.get("pipes", ()) if r["name"] == name and len(r["durations_ms"]["addBatch"]) > 2]
             for name in ("log", "kafka")}  # fmt: skip
    if not all(pipes.values()):
        return []
    kafka = {run["round"]: run["latency_ms"] for run in pipes["kafka"]}
    lines = []
    for title, name in (("`mamasub` to `mamapub`, flight log", "log"), ("Kafka to Kafka", "kafka")):
        runs = pipes[name]
        measured = [statistics.median(run["latency_ms"][which] for run in runs) for which in ("p50", "p99")]
        parts = [statistics.median(statistics.median(run["durations_ms"][d]) for run in runs) for d in DURATIONS]
        cells = [f"{middle:.0f}" for middle in (*measured, *parts)]
        left = [(run["round"], _left_of_pipe(run)) for run in runs]
        for which in ("p50", "p99"):
            to_kafka = [one[which] / kafka[round_][which] for round_, one in left if round_ in kafka]
            middle, quotient = statistics.median(one[which] for _, one in left), statistics.median(to_kafka)
            cells.append(f"{middle:.0f}: {quotient:.2f}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return [
        "## A pipe",
        "",
        "1,000 messages a second; milliseconds. The last two columns: what the latencies would be if source and sink"
        " took no time at all, from the other parts of each micro-batch, and their quotients to those of Kafka's pipe"
        " in the same round.",
        "",
        f"| pipe | p50 | p99 | {' | '.join(f'`{d}`' for d in DURATIONS)} | p50 without `latestOffset` and `addBatch` "
        "| p99 without them |",
        f"|---|{'---|' * (len(DURATIONS) + 4)}",
        *lines,
        "",
    ]


def runs_table(runs: list[Result], *, beside: bool = True) -> list[str]:
    """A line a way and size: medians.

    :param beside: also C programs beside a loop
    """
    lines = [
        "| row | way | rows/s | client µs a row | server µs a row | bytes stored a row |",
        "|---|---|---|---|---|---|",
    ]
    ways = [(one.way.name, one.size) for one in PUBLISHING if beside or one.beside is None]
    ways += [(way.name, size) for size in (100, 1000) for way in READING]
    for name, size in ways:
        some = [run for run in runs if run["name"] == name and run["size"] == size]
        if some:
            stored = statistics.median(run.get("stored_bytes_per_row", 0.0) for run in some)
            quiet = [run for run in some if run.get("other_cores", 0.0) <= MOST_OTHERS]
            cpu = [
                f"{statistics.median(run[field] for run in quiet):.2f}" if quiet else ""
                for field in ("client_us", "server_us")
            ]
            lines.append(
                f"| {_SIZES[size]} | `{name}` | {spread([run['rate'] for run in some])} "
                f"| {' | '.join(cpu)} | {f'{stored:,.1f}' if stored else ''} |"
            )
    return lines


def text(result: Result) -> str:
    """All that was measured, and the aims."""
    return "\n".join(
        [
            "## Aims",
            "",
            *aims(result),
            "",
            *beside_table(result),
            *pipe_table(result),
            "## In steady state",
            "",
            *runs_table(result["runs"]),
            "",
            "## Cold",
            "",
            "The first run of each way in its session, in random order: short, as small jobs are.",
            "",
            *runs_table(result["cold"]),
        ]
    )


#: The page has their ratios; the part of ``bench.report`` has rates of one row a message.
ONLY_RATIOS = {"c-acks", "c-acks-id", "message", "message-nolog", "off", "lines-tuned", "arrow-tuned", "memory"}


def markdown(result: Result) -> str:
    left_out = {*ONLY_RATIOS, "lines-lz4", "kafka-lz4"}
    shown = [run for run in result["runs"] if run["size"] != 1000 and run["name"] not in left_out]
    body = [*compared(result), "", *runs_table(shown, beside=False)]
    packages = "Spark, Python, nats-server, pyarrow"
    return part(result["facts"], packages, *_sessions(result), *about_kafka(result), *body)


def _sessions(result: Result) -> list[str]:
    """That not all ways were measured together, if so; ``note`` of a session tells what was different in it."""
    if "sessions" not in result:
        return []
    notes = [f" {session['ways']}: {session['note']}." for session in result["sessions"] if "note" in session]
    return [f"Not all ways were measured together; each ratio is of ways measured together.{''.join(notes)}", ""]


def merged(kept: Result, new: Result) -> Result:
    """``kept`` with the ways of ``new`` in place of its own.

    :raises SystemExit: ``new`` has one of two ways that are compared with each other, or was measured with other
        versions, on another machine, or in shorter runs
    """
    ways = {(run["name"], run["size"]) for run in new["runs"]}
    if ways >= {(run["name"], run["size"]) for run in kept["runs"]}:
        return new
    for name in sorted((new["facts"].keys() | kept["facts"].keys()) - {"when"}):
        if new["facts"].get(name) != kept["facts"].get(name):
            raise SystemExit(
                f"measured with {name} {new['facts'].get(name)}, the others with {kept['facts'].get(name)}"
            )
    if new["seconds"] != kept["seconds"]:
        raise SystemExit(f"runs of {new['seconds']:g} s, the others of {kept['seconds']:g}")
    codecs = [(f"{sink}-{codec}", FLIGHTS) for sink in ("lines", "kafka") for codec in CODECS]
    compared = [[(name, size), (other, size)] for size, name, other, _ in RATIOS]
    compared += [codecs, [("lines", 1000), ("drop", 1000)], *([(name, 100) for name in names] for names in BESIDE)]
    for group in compared:
        if ways & {*group} and not ways >= {*group}:
            raise SystemExit(
                f"compared with each other: {', '.join(f'{name} ({_SIZES[size]})' for name, size in group)}"
            )
    found: Result = dict(kept)
    found |= {name: new[name] for name in ("facts", "kafka", "pipes", "micro_batch_ms") if name in new}
    for kind in ("runs", "cold"):
        left = [run for run in kept[kind] if (run["name"], run["size"]) not in ways]
        found[kind] = [*left, *(run for run in new[kind] if (run["name"], run["size"]) in ways)]
    names = [
        f"{', '.join(f'`{name}`' for name in sorted(name for name, of in ways if of == size))} of {title}"
        for size, title in _SIZES.items()
        if any(of == size for _, of in ways)
    ]
    names += [title for kind, title in (("pipes", "the pipes"), ("micro_batch_ms", "micro-batches")) if kind in new]
    before = kept.get("sessions") or [{"when": kept["facts"]["when"]}]
    found["sessions"] = [*before, {"when": new["facts"]["when"], "ways": "; ".join(names)}]
    return found


def main(argv: list[str]) -> None:
    result: Result = json.loads(KEPT.read_text())
    if argv:
        result = merged(result, json.loads(Path(argv[0]).read_text()))
        KEPT.write_text(json.dumps(result, indent=1) + "\n")
    write_part("steady", markdown(result))


if __name__ == "__main__":
    main(sys.argv[1:])
