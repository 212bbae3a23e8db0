"""Finds the files of failed attempts that may still be added to a table: none that it has, or had."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow.fs as pafs
from deltalake import DeltaTable

from .parts import Part, part_of_file
from .storage import TableStore, active_paths, removed_paths

_DEFAULT_RETENTION = timedelta(days=7)


def known_files(table: DeltaTable) -> tuple[dict[str, bool], set[str]]:
    """The active files of the table with their ``committed``; and all files that its log knows, removed ones too."""
    active = active_paths(table)
    return active, active.keys() | removed_paths(table)


def unknown_parts(store: TableStore, table: DeltaTable, infos: Sequence[pafs.FileInfo], known: set[str]) -> list[Part]:
    """The whole parts among ``infos`` that the table never had."""
    oldest = oldest_addable(table)
    orphans = [i for i in infos if i.path not in known and i.mtime is not None and i.mtime > oldest]
    return [p for i in orphans if (p := part_of_file(store, i.path, i.size)) is not None]


def oldest_addable(table: DeltaTable) -> datetime:
    """Older files are never added: the log may have forgotten their removal, and their rows would be there twice."""
    # Time of day: is compared with the times of files, by days.
    return datetime.now(UTC) - _removal_retention(table)


def _removal_retention(table: DeltaTable) -> timedelta:
    text = table.metadata().configuration.get("delta.deletedFileRetentionDuration")
    if text is None:
        return _DEFAULT_RETENTION
    found = re.fullmatch(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", text.strip().lower())
    return timedelta(**{found[2] + "s": int(found[1])}) if found else timedelta(0)
