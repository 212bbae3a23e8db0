"""Reads configuration files: TOML, in which ``${NAME}`` stands for an environment variable, and ``${file:PATH}`` for
the content of a file, such as a mounted secret."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from ..contracts.errors import ConfigError

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
    """The value with the environment variables and files in its texts."""
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
    """Of a file, without the line break at its end."""
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise ConfigError(f"{where}: the file {path} cannot be read: {why}") from None
