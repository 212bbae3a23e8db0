"""The fault campaign: writes under faults, in configurations and at moments drawn from a seed, judged by an oracle.

``python -m tests.campaign.run [--minutes N] [--rounds N] [--seed N] [--only FAULT] [--bridge BROKER] [--ordered]
[--once] [--folder DIR]``. Each round prints a line. Round ``i`` of seed ``s``
is round 0 of seed ``s + i``. The folder of a round that went wrong is kept. The exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.campaign.rounds import Round, play


def campaign(
    folder: Path,
    seed: int,
    *,
    minutes: float = float("inf"),
    rounds: int | None = None,
    **wanted: Any,
) -> list[Round]:
    """Rounds until the time is over, or so many.

    :param wanted: see :func:`~.rounds.play`
    """
    until, done = time.monotonic() + 60 * minutes, list[Round]()
    while time.monotonic() < until and (rounds is None or len(done) < rounds):
        number = seed + len(done)
        place = folder / f"round-{number}"
        one = play(number, place, **wanted)
        print(f"{time.strftime('%H:%M:%S')} {one}", flush=True)
        if one.wrong:
            print(f"kept: {place}", flush=True)
        else:
            shutil.rmtree(place)
        done.append(one)
    return done


def totals(rounds: Iterable[Round]) -> str:
    """A line for each fault, with ids and without."""
    found: dict[str, Counter[str]] = {}
    for one in rounds:
        f = one.findings
        counts = {"rounds": 1, "strikes": one.strikes, "rows": f.rows, "lost": f.lost, "doubled": f.doubled}
        name = f"{one.fault.name}, {'ids' if one.configuration.ids else 'no ids'}"
        found.setdefault(name, Counter()).update({**counts, "unaccounted": f.unaccounted})
    lines = (", ".join(f"{n:,} {what}" for what, n in counts.items()) for counts in found.values())
    return "\n".join(f"{name}: {line}" for name, line in zip(found, lines, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes under faults, held against an oracle.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, help="of the first round; else drawn")
    parser.add_argument("--only", default="", help="part of the name of a fault")
    parser.add_argument("--bridge", default="", help="part of the name of a broker")
    parser.add_argument("--ordered", action="store_true", help="only configurations with order=partition")
    parser.add_argument("--once", action="store_true", help="only configurations with exactlyOnce")
    parser.add_argument("--folder", type=Path, help="for what the rounds make")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="campaign-"))
    wanted = {name: getattr(given, name) for name in ("only", "bridge", "ordered", "once")}
    done = campaign(folder, seed, minutes=given.minutes, rounds=given.rounds, **wanted)
    print(totals(done))
    wrong = [one for one in done if one.wrong]
    print(f"seed {seed}, {len(done)} rounds, {len(wrong)} of them wrong: {[one.seed for one in wrong]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
