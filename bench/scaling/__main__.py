"""``python -m bench.scaling [--only NAME,..] [--most N] [--out FILE]``: run the simulations, each size in a process of
its own, and write down what they measure. ``python -m bench.scaling.report FILE`` puts it into the documentation."""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

from bench.result import ROOT, Result, facts, finish

from . import report
from .simulations import SIMULATIONS, measure


def run(names: list[str], most: int) -> Result:
    """:param most: larger sizes are left out"""
    measured: dict[str, list[dict[str, float]]] = {}
    for name in names:
        for size in SIMULATIONS[name].sizes:
            if size <= most:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    measured.setdefault(name, []).append(pool.apply(measure, (name, size)))
                print(name, measured[name][-1], flush=True)
    return {"facts": facts(), "measured": measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SIMULATIONS), help="simulations, separated by commas")
    parser.add_argument("--most", type=int, default=10**9, help="sizes above it are left out")
    parser.add_argument("--out", type=Path, default=ROOT / ".run" / "bench" / "scaling.json")
    args = parser.parse_args()
    result = run(args.only.split(","), args.most)
    finish(result, args.out, report.text, report.__name__)


if __name__ == "__main__":
    main()
