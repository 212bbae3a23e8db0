"""Reads one table of a configuration file into the fields that a dataclass declares (:func:`.declare.option`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..contracts.errors import ConfigError
from .declare import declarations, nearest
from .values import Duration


def parse_table(
    declared: type, table: Any, where: str, spelling: Callable[[str], str] = str, required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Values by field. What the table does not name stays out, so that the class's default holds.

    :param declared: dataclass whose options are the keys
    :param where: what errors begin with: the file and the table
    :param spelling: key in the file for the name of a field
    :param required: keys that must be there
    :raises ConfigError: no table, an unknown or missing key, or a wrong value; names the key, never a secret
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is a table")
    known = {spelling(name): (name, option) for name, option in declarations(declared)}
    for key in table:
        if key not in known:
            raise ConfigError(f"{where} unknown key {key!r}{nearest(key, known) or f'; there are {_list(known)}'}")
    for key in required:
        if key not in table:
            raise ConfigError(f"{where} the key {key} is missing")
    found = {}
    for key, value in table.items():
        name, option = known[key]
        parse = option.parse.with_unit if isinstance(option.parse, Duration) else option.parse
        try:
            found[name] = parse(value)
        except (ValueError, TypeError) as e:
            got = "" if option.secret else f", got {value!r}"
            raise ConfigError(f"{where} {key} {e}{got}") from None
    return found


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(names)
