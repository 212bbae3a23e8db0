"""Reads configuration files: TOML, in which ``${NAME}`` stands for an environment variable."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from ..errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of the file.

    :raises ConfigError: it cannot be read, is no TOML, or names a variable that is not set
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
    """The value with the environment variables in its texts."""
    if isinstance(value, dict):
        return {key: _substitute(one, f"{where} {key}") for key, one in value.items()}
    if isinstance(value, list):
        return [_substitute(one, where) for one in value]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ConfigError(f"{where}: the environment variable {match[1]} is not set")
        return os.environ[match[1]]

    return _VARIABLE.sub(variable, value)
