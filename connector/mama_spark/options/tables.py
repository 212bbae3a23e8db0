"""Reads configuration files: TOML, in which ``${NAME}`` stands for an environment variable, and ``${file:PATH}`` for
the content of a file, such as a mounted secret. A table becomes the fields that a dataclass declares
(:func:`.declare.option`)."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..contracts.errors import ConfigError
from .declare import declarations
from .times import Duration
from .values import nearest

_REFERENCE = re.compile(r"\$\{(?:file:(?P<file>[^}]+)|(?P<name>\w+))\}")


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of the file.

    :raises ConfigError: it cannot be read, is no TOML, names a variable that is not set or a file that cannot be read
    """
    try:
        with Path(path).open("rb") as file:
            content = tomllib.load(file)
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror or e}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not TOML: {e}") from e
    return {name: _substitute(value, f"{path}: [{name}]") for name, value in content.items()}


def _substitute(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(one, f"{where} {key}") for key, one in value.items()}
    if isinstance(value, list):
        return [_substitute(one, where) for one in value]
    if not isinstance(value, str):
        return value

    def referred(match: re.Match[str]) -> str:
        if match["file"] is not None:
            return _content(match["file"], where)
        if match["name"] not in os.environ:
            raise ConfigError(f"{where}: the environment variable {match['name']} is not set")
        return os.environ[match["name"]]

    return _REFERENCE.sub(referred, value)


def _content(path: str, where: str) -> str:
    """The content without the line break at its end."""
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise ConfigError(f"{where}: the file {path} cannot be read: {why}") from None


def parse_table(
    declared: type, table: Any, where: str, spelling: Callable[[str], str] = str, required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Values by field. What the table does not name stays out, so that the class's default holds.

    :param declared: dataclass whose options are the keys
    :param where: begin of errors: the file and the table
    :param spelling: key in the file for the name of a field
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
