"""Where the set-up has put Tango 9 (``scripts/fetch_tango9.py``): PyTango 9.3.6, DataBaseds, MariaDB."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TANGO9 = ROOT / ".venv" / "tango9"
#: Environment in which another interpreter finds the helper programs.
PATHS = {"PYTHONPATH": f"{ROOT / 'connector'}:{ROOT}"}


def program(name: str) -> str:
    """Path of a file there.

    :raises AssertionError: the set-up has not fetched it
    """
    found = TANGO9 / name
    assert found.exists(), f"{found} is missing: make setup fetches Tango 9 from Debian 12 (scripts/fetch_tango9.py)"
    return str(found)


def run(name: str, *words: str) -> list[str]:
    """Command that runs a program of Debian 12.

    :param name: its path, such as ``usr/lib/tango/DataBaseds``
    """
    return [program("bin/run"), program(f"root/{name}"), *words]
