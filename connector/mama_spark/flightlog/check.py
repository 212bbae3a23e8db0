"""Can a job keep its tables here? Answered by looking only: nothing is made, not even a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa

from ..errors import FlightLogError
from .schema import DEAD_LETTERS, table_schema
from .storage import PARTS, TableStore, check_fits, storage_errors


def look_at_flight_log(uri: str, storage: dict[str, str], columns: Sequence[str] = ()) -> list[str]:
    """What there is to say about the option ``flightLog``.

    :param storage: delta-rs' storage options
    :param columns: ``flightLogColumns``; without a DataFrame only their names can be checked
    :raises FlightLogError: another table stands there, not a folder, no permission
    :raises SchemaError: a column of ``columns`` has the name of one of the flight log
    :raises Unavailable: storage cannot be reached
    """
    table_schema([pa.field(name, pa.null()) for name in columns])
    found = _look(uri, storage, "flightLog", table_schema(), frozenset())
    if columns:
        found.append(f"flightLogColumns {', '.join(columns)}: that they exist, and their types, the write checks")
    return found


def look_at_dead_letters(uri: str, storage: dict[str, str]) -> list[str]:
    """As :func:`look_at_flight_log`, for the option ``deadLetterTable``."""
    return _look(uri, storage, "deadLetterTable", DEAD_LETTERS, None)


def _look(uri: str, storage: dict[str, str], what: str, schema: pa.Schema, extra: frozenset[str] | None) -> list[str]:
    store = TableStore(uri, storage)
    with storage_errors(f"{what} {uri}"):
        may_write = _local_permission(store, what)
        table = store.table()
        if table is not None:
            check_fits(table, schema, what, extra)
        if store.local is None:
            store.list_files(PARTS)  # a bucket that does not exist looks like a table that does not
    there = "no table yet, the first commit makes it" if table is None else f"a table, version {table.version()}"
    return [f"{uri}: {there}{may_write}"]


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
