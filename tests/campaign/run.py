"""The fault campaign: writes under faults, in configurations and at moments drawn from a seed, judged by an oracle.

``python -m tests.campaign.run [--minutes N] [--rounds N] [--seed N] [--spark PART] [--only FAULT] [--bridge BROKER]
[--ordered] [--once] [--folder DIR] [--table FILE] [--json FILE]``. Each round prints a line. Round ``i`` of seed ``s``
is round 0 of seed ``s + i``. The folder of a round that went wrong is kept. The exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaign.rounds import Round, play
from tests.campaign.table import markdown


def campaign(
    folder: Path,
    seed: int,
    *,
    minutes: float = float("inf"),
    rounds: int | None = None,
    spark: float = 0.0,
    only: str = "",
    bridge: str = "",
    ordered: bool = False,
    once: bool = False,
    show: Callable[[str], None] = lambda line: print(line, flush=True),
) -> list[Round]:
    """Rounds until the time is over, or so many.

    :param spark: which part of them runs in Spark
    """
    until, done = time.monotonic() + 60 * minutes, list[Round]()
    while time.monotonic() < until and (rounds is None or len(done) < rounds):
        number = seed + len(done)
        place = folder / f"round-{number}"
        in_spark = random.Random(f"spark {number}").random() < spark
        one = play(number, place, spark=in_spark, only=only, bridge=bridge, ordered=ordered, once=once)
        show(f"{time.strftime('%H:%M:%S')} {one}")
        if one.wrong:
            show(f"kept: {place}")
        else:
            shutil.rmtree(place)
        done.append(one)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes under faults, held against an oracle.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, help="of the first round; else drawn")
    parser.add_argument("--spark", type=float, default=0.05, help="which part of the rounds runs in Spark")
    parser.add_argument("--only", default="", help="part of the name of a fault")
    parser.add_argument("--bridge", default="", help="part of the name of a broker")
    parser.add_argument("--ordered", action="store_true", help="only configurations with order=partition")
    parser.add_argument("--once", action="store_true", help="only configurations with exactlyOnce")
    parser.add_argument("--folder", type=Path, help="for what the rounds make")
    parser.add_argument("--table", type=Path, help="write the table here, as Markdown")
    parser.add_argument("--json", type=Path, help="write all rounds here, one a line")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="campaign-"))
    done = campaign(
        folder, seed, minutes=given.minutes, rounds=given.rounds, spark=given.spark, only=given.only,
        bridge=given.bridge, ordered=given.ordered, once=given.once,
    )  # fmt: skip
    if given.json is not None:
        given.json.write_text("".join(f"{json.dumps(one.as_json())}\n" for one in done))
    table = markdown(done)
    if given.table is not None:
        given.table.write_text(table)
    print(table)
    wrong = [one for one in done if one.wrong]
    print(f"seed {seed}, {len(done)} rounds, {len(wrong)} of them wrong: {[one.seed for one in wrong]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
