"""Run the tests of this folder whose programs are there: ``python -m tests.originals PREFIX [arguments of pytest]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .needed import NEEDED, described, missing


def main(words: list[str]) -> int:
    if not words or not words[0]:
        print(described())
        return 2
    prefix, rest = Path(words[0]).resolve(), words[1:]
    lacking = {key: found for key, projects in NEEDED.items() if (found := missing(prefix, projects))}
    for key, names in lacking.items():
        print(f"test_{key}.py is left out; below {prefix} there is no {', '.join(names)}")
    present = sorted(NEEDED.keys() - lacking.keys())
    if not present:
        print(described())
        return 2
    os.environ["ORIGINALS"] = str(prefix)
    files = [str(Path(__file__).with_name(f"test_{key}.py")) for key in present]
    code = pytest.main(["-m", "originals", "-p", "no:xdist", *files, *rest])
    return int(code) or (1 if lacking else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
