"""``python -m tests.simulation``: runs seeds in simulated worlds, and shows one step by step.

With ``--seed`` one seed is run, and its trace printed with ``--trace``; else ``--runs`` seeds from ``--from`` on, in
the world of ``--world`` or in all in turn. Where a seed fails, a smaller world is looked for in which it fails, too:
its ``--rows``, ``--partitions`` and ``--max-faults`` are printed. ``--faults`` plants faults of the protocol, one at a
time, and prints after how many seeds each is found. Ends with 1 where anything was violated, or a fault was not found.

A second of processor time runs 40 to 60 seeds of ``publish``, 20 to 40 of ``recorder`` and ``discovery``, and 4 to 9 of
each other world (two cores with a load of 12). The profile is flat: most of it is the product's own Python.
"""

from __future__ import annotations

import argparse
import sys
import time

from .faults import find_all
from .modules import simulated
from .worlds import WORLDS, Shape, run, shrunk


def main() -> int:
    usual = Shape()
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--world", choices=sorted(WORLDS))
    parser.add_argument("--from", dest="begin", type=int, default=0, metavar="N")
    parser.add_argument("--runs", type=int, default=2000, metavar="COUNT")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--rows", type=int, default=usual.rows, metavar="N", help="of a world, which may have more")
    parser.add_argument("--partitions", type=int, default=usual.partitions, metavar="N", help="at most")
    parser.add_argument(
        "--max-faults", type=int, default=usual.faults, metavar="N", help="of a world, or twice so many"
    )
    parser.add_argument("--trace", action="store_true", help="print what happens, step by step")
    parser.add_argument("--first", dest="until_found", action="store_true", help="end with the first violation")
    parser.add_argument(
        "--faults", nargs="?", const="", metavar="NAME_PART", help="plant faults, all or those named so"
    )
    args = parser.parse_args()
    if args.faults is not None:
        return 1 if find_all(args.begin, args.runs, args.faults, args.world) else 0
    worlds = [args.world] if args.world else sorted(WORLDS)
    seeds = range(args.begin, args.begin + args.runs) if args.seed is None else [args.seed]
    shape = Shape(args.rows, args.max_faults, args.partitions)
    violated, runs, began = 0, 0, time.monotonic()
    with simulated():
        for seed in seeds:
            for world in worlds:
                runs += 1
                found = run(world, seed, shape, tracing=args.trace)
                for line in found.lines:
                    print(line)
                if found.violations:
                    violated += 1
                    print(f"{world}, seed {seed}: {'; '.join(found.violations)}")
                    if args.until_found:
                        return 1
                    small = shrunk(world, seed, shape)
                    print(
                        f"  it fails with --world {world} --seed {seed} --rows {small.rows}"
                        f" --partitions {small.partitions} --max-faults {small.faults}, too"
                    )
    seconds = time.monotonic() - began
    print(f"{runs} runs, {seconds:.1f} s, {violated} violations")
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
