"""Checks whether a job can keep its flight log and dead letters at a place. Read-only: not even a folder is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath

import pyarrow as pa

from ..contracts.errors import FlightLogError
from .folder import OTHER_FOLDER, SHARE_IT
from .schema import DEAD_LETTERS, table_schema
from .storage import TableStore, existing_table, storage_errors

#: File systems that several machines mount, as ``/proc`` names them. One of FUSE (``fuse.*``) may be shared or not.
SHARED_FILE_SYSTEMS = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
     "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs")
)  # fmt: skip

_MOUNTS = "/proc/self/mountinfo"


def check_flight_log(uri: str, storage: dict[str, str], columns: Sequence[str], master: str | None) -> list[str]:
    """Findings about the option ``flightLog``, for people.

    :param master: Spark master of the job; None = not known
    :param columns: ``flightLogColumns``; without a DataFrame only their names can be checked
    :raises FlightLogError: there is another table, a folder with files of others, no folder, no permission, or a disk
        of this machine alone where ``master`` is a cluster
    :raises SchemaError: a column of ``columns`` has the name of one of the flight log
    :raises Unavailable: storage cannot be reached
    """
    table_schema([pa.field(name, pa.null()) for name in columns])
    found = _check(uri, storage, "flightLog", table_schema(), frozenset(), master)
    if columns:
        found.append(f"flightLogColumns {', '.join(columns)}: that they exist, and their types, the write checks")
    return found


def check_dead_letters(uri: str, storage: dict[str, str], master: str | None) -> list[str]:
    """Findings of :func:`check_flight_log` about the option ``deadLetterTable``."""
    return _check(uri, storage, "deadLetterTable", DEAD_LETTERS, frozenset(), master)


def _check(
    uri: str, storage: dict[str, str], what: str, schema: pa.Schema, extra: frozenset[str], master: str | None
) -> list[str]:
    store = TableStore(uri, storage)
    with storage_errors(f"{what} {uri}", storage):
        permission = _local_permission(store, what)
    table = existing_table(store, schema, what, extra)  # which also shows that a bucket does not exist
    state = "no table yet, the first commit makes it" if table is None else f"a table, version {table.version()}"
    return [f"{uri}: {state}{permission}{_sharing(store, what, master)}"]


def _sharing(store: TableStore, what: str, master: str | None) -> str:
    """Advice on a folder that driver and executors must share.

    :raises FlightLogError: they cannot
    """
    kind = None if store.local is None else file_system(str(store.local))
    if kind is None or kind in SHARED_FILE_SYSTEMS or kind.startswith("fuse"):
        return ""
    if master is None:
        return f"; on a disk of this machine ({kind}): for a job on a cluster, {SHARE_IT}"
    if master.startswith("local"):
        return ""
    raise FlightLogError(
        f"{what} {store.uri} is on a disk of this machine ({kind}), which executors of {master} do not see: {SHARE_IT}"
    )


def _local_permission(store: TableStore, what: str) -> str:
    if store.local is None:
        return "; that it can be written is tried by each task before its first message"
    folder = store.local.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise FlightLogError(f"{what} {store.uri}: {folder} is a file, not a folder; {OTHER_FOLDER}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FlightLogError(f"{what} {store.uri}: no permission to write in {folder}; {OTHER_FOLDER}")
    return "; can be written from here"


def file_system(path: str, mounts: str = _MOUNTS) -> str | None:
    """Type of the file system that holds ``path``, or will when it is made: ``ext4``, ``nfs4``, ..; None = not known.
    ``mounts``: a file in the format of ``/proc/self/mountinfo``."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    real = PurePosixPath(os.path.realpath(path))
    kind, depth = None, -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = PurePosixPath(_unescaped(fields.split(" ")[4]))
        if real.is_relative_to(point) and len(point.parts) >= depth:  # a later mount hides an earlier one
            kind, depth = rest.split(" ")[0], len(point.parts)
    return kind


def _unescaped(text: str) -> str:
    for code, char in ("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"):
        text = text.replace(code, char)
    return text
