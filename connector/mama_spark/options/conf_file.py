"""Configuration files of jobs: TOML, one annotated file per job, read by the jobs and by ``mama check``.

The tables ``[mamapub]``, ``[mamasub]`` and ``[mamadiscovery]`` hold options of the formats by their names,
``[mamapub.storage]`` (or ``storage.x``) what goes to delta-rs; other tables belong to the job. ``${NAME}`` in a text is
replaced by the environment variable, so that secrets stay out of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..contracts.errors import ConfigError
from . import ANY_READ, ANY_WRITE, FORMATS, why_not_here
from .tables import read_toml
from .values import nearest

Table = dict[str, Any]  #: str, int, bool or list of str by name; in tables of formats only the first three


def load(path: str | Path, tables: Iterable[str] = ("mamapub", "input", "reader", "stream")) -> dict[str, Table]:
    """Read the file; every one of ``tables`` is in the result, empty where the file does not have it.

    :raises ConfigError: names the file, the table and the key, with the nearest name for one that is not known
    """
    content = read_toml(path)
    known = list(tables)
    found: dict[str, Table] = {name: {} for name in known}
    for name, table in content.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name!r} must stand in a table, such as [{known[0]}]")
        if name not in known:
            raise ConfigError(f"{path}: unknown table [{name}]{nearest(name, known)}")
        found[name] = {key: _value(path, name, key, value) for key, value in _flat(table).items()}
    for name in FORMATS.keys() & found.keys():
        found[name] = {key: _option(path, name, key, value) for key, value in found[name].items()}
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> Table:
    """Dotted names for tables within a table: TOML reads ``storage.region = 1`` as one."""
    flat: Table = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _value(path: str | Path, table: str, key: str, value: Any) -> Any:
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return value
    raise ConfigError(f"{path}: [{table}] {key} must be a text, a number, true, false or a list of texts")


def _option(path: str | Path, table: str, key: str, value: Any) -> Any:
    low, use = key.lower(), ANY_WRITE if table == "mamapub" else ANY_READ
    if low not in use.spark_keys and (why := why_not_here(FORMATS[table], low, key, use)):
        raise ConfigError(f"{path}: [{table}] {why}")
    return ",".join(value) if isinstance(value, list) else value


def as_options(table: Mapping[str, Any]) -> dict[str, str]:
    """The table of a format as Spark would hand it over."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in table.items()}
