"""Checks whether a job can keep its flight log and dead letters at a place. Read-only: not even a folder is made."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa

from ..errors import FlightLogError
from .schema import DEAD_LETTERS, table_schema
from .storage import PARTS, TableStore, check_table_schema, storage_errors


def check_flight_log(uri: str, storage: dict[str, str], columns: Sequence[str] = ()) -> list[str]:
    """Findings about the option ``flightLog``, for people.

    :param storage: delta-rs' storage options
    :param columns: ``flightLogColumns``; without a DataFrame only their names can be checked
    :raises FlightLogError: there is another table, no folder, or no permission
    :raises SchemaError: a column of ``columns`` has the name of one of the flight log
    :raises Unavailable: storage cannot be reached
    """
    table_schema([pa.field(name, pa.null()) for name in columns])
    found = _check(uri, storage, "flightLog", table_schema(), frozenset())
    if columns:
        found.append(f"flightLogColumns {', '.join(columns)}: that they exist, and their types, the write checks")
    return found


def check_dead_letters(uri: str, storage: dict[str, str]) -> list[str]:
    """As :func:`check_flight_log`, for the option ``deadLetterTable``."""
    return _check(uri, storage, "deadLetterTable", DEAD_LETTERS, None)


def _check(uri: str, storage: dict[str, str], what: str, schema: pa.Schema, extra: frozenset[str] | None) -> list[str]:
    store = TableStore(uri, storage)
    with storage_errors(f"{what} {uri}"):
        permission = _local_permission(store, what)
        table = store.table()
        if table is not None:
            check_table_schema(table, schema, what, extra)
        if store.local is None:
            store.list_files(PARTS)  # a bucket that does not exist looks like a table that does not
    state = "no table yet, the first commit makes it" if table is None else f"a table, version {table.version()}"
    return [f"{uri}: {state}{permission}"]


def _local_permission(store: TableStore, what: str) -> str:
    """:raises FlightLogError: this user cannot write there"""
    if store.local is None:
        return "; that it can be written is tried by each task before its first message"
    folder = store.local.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise FlightLogError(f"{what} {store.uri}: {folder} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FlightLogError(f"{what} {store.uri}: no permission to write in {folder}")
    return "; can be written from here"
