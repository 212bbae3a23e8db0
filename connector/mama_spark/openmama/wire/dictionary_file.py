"""Reads the file of a data dictionary."""

from __future__ import annotations

from pathlib import Path

from mama_spark.contracts.errors import ConfigError

from .protocol.dictionary import DictionaryEntry, parse_dictionary


def dictionary_of_file(path: str | Path, what: str) -> list[DictionaryEntry]:
    """The entries of a file, in order.

    :param what: names the setting that gave the path, for the error
    :raises ConfigError: it cannot be read, or is no dictionary
    """
    try:
        return parse_dictionary(Path(path).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ConfigError) as e:
        raise ConfigError(f"{what} {path}: {getattr(e, 'strerror', None) or e}") from e
