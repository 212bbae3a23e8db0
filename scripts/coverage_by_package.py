"""Line and branch coverage of the connector by package.

    python scripts/coverage_by_package.py coverage.json              a row a package
    python scripts/coverage_by_package.py before.json after.json     both, and where it is lower

The files are those of ``coverage json``. A package is a folder below ``mama_spark``; test support is left out.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Covered(NamedTuple):
    """Statements and branches: how many there are, how many ran."""

    statements: int = 0
    run: int = 0
    branches: int = 0
    taken: int = 0

    def __add__(self, other: object) -> Covered:
        assert isinstance(other, Covered)
        return Covered(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def lines(self) -> float:
        return 100 * self.run / (self.statements or 1)

    @property
    def jumps(self) -> float:
        return 100 * self.taken / (self.branches or 1)


def by_package(report: Path) -> dict[str, Covered]:
    found: dict[str, Covered] = defaultdict(Covered)
    for name, file in json.loads(report.read_text())["files"].items():
        package = name.rpartition("connector/mama_spark/")[2].rpartition("/")[0] or "(top)"
        if "testing" in package.split("/"):
            continue
        s = file["summary"]
        one = Covered(s["num_statements"], s["covered_lines"], s["num_branches"], s["covered_branches"])
        found[package] += one
        found["all"] += one
    return found


def main(reports: list[str]) -> int:
    before, *after = [by_package(Path(name)) for name in reports]
    print(f"{'package':<28}{'statements':>12}{'lines %':>9}{'branches':>10}{'taken %':>9}" + " | after" * bool(after))
    lower = []
    for name in sorted(before):
        one = before[name]
        row = f"{name:<28}{one.statements:>12}{one.lines:>9.1f}{one.branches:>10}{one.jumps:>9.1f}"
        if after:
            two = after[0].get(name, Covered())
            row += f" |{two.statements:>7}{two.lines:>7.1f}{two.branches:>7}{two.jumps:>7.1f}"
            if two.lines < one.lines - 0.05 or two.jumps < one.jumps - 0.05:
                lower.append(name)
                row += "  lower"
        print(row)
    return 1 if lower else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
