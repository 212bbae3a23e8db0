"""Plants faults of the protocol one at a time, and counts the seeds after which a world shows each.

The faults are those of :mod:`tests.seeded_faults` that name ``worlds``: a world that finds nothing where a cure is
taken out explores too little.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.seeded_faults.run import ROOT, Fault, make_copy, read_faults

#: What a run that ends with the first violation says of it.
_FOUND = re.compile(r"^\S+, seed (\d+): ", re.MULTILINE)


def find_all(first: int, runs: int, only: str = "", world: str | None = None) -> int:
    """Print a table, a line for each fault; how many were not found.

    :param first: seed to begin with
    :param runs: most seeds of one world
    :param only: part of the names of the faults
    """
    faults = [one for one in read_faults() if one.worlds and only in one.name and world in (None, *one.worlds)]
    width, missed = max((len(one.name) for one in faults), default=0), 0
    print(f"{'fault':{width}}  {'world':12}  first seed  runs")
    with tempfile.TemporaryDirectory(prefix="mama-faults-") as folder:
        copy = Path(folder, "copy")
        make_copy(ROOT, copy)
        for fault in faults:
            with fault.planted(copy):
                worlds = [world] if world else fault.worlds
                found = _first_seed(copy, fault, worlds, first, runs)
            missed += found is None
            where, seed = found or (", ".join(worlds), None)
            after = "NOT FOUND" if seed is None else f"{seed:10}  {seed - first + 1:4}"
            print(f"{fault.name:{width}}  {where:12}  {after}", flush=True)
    print(f"{len(faults)} faults, {missed} not found within {runs} runs")
    return missed


def _first_seed(copy: Path, fault: Fault, worlds: Sequence[str], first: int, runs: int) -> tuple[str, int] | None:
    """The first world and seed that show a fault."""
    for world in worlds:
        command = [str(copy / "scripts/in-env"), "python", "-m", "tests.simulation", "--world", world]
        command += ["--from", str(first), "--runs", str(runs), "--first"]
        env = {**os.environ, "PYTHONPATH": f"{copy / 'connector'}:{copy}"}
        done = subprocess.run(command, cwd=copy, env=env, text=True, capture_output=True)
        if done.returncode == 1 and (seed := _FOUND.search(done.stdout)):
            return world, int(seed[1])
        if done.returncode:
            raise SystemExit(f"{fault.name}: the simulation ends with {done.returncode}: {done.stderr[-1000:]}")
    return None
