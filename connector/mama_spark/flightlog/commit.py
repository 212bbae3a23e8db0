"""Commits parts to the Delta table: their rows appear all at once.

It is called in one process, not that of the tasks, perhaps more than once and perhaps never. Why that is safe:

* A part is added at most once: files that the table has, or had (compacted, deleted), are not added.
* ``committed`` is a partition value, so it is decided here, for files that were written long before.
* A micro-batch is recorded as an app transaction (query id, batch id) in the same commit. A commit that finds it
  recorded adds its parts as not committed. Of two commits at once the loser reads the table again.
* Other parts in the folder of the write were left by failed attempts at this batch: they are added as not committed.
  :func:`.maintenance.adopt_orphans` adds the parts of a job that is never started again.
* No file is added that is not there as its task described it: one listing of the folder of the write proves it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from ..contracts.errors import FlightLogError
from .folder import PARTS, SHARE_IT, WriteId
from .orphaned_parts import known_files, unknown_parts
from .parts import Part
from .schema import FLIGHT_LOG, TableKind
from .storage import TableStore, storage_errors
from .transaction import CommitPlan, CommitResult, TargetTable, execute

logger = logging.getLogger("mama_spark")


def commit(
    table_uri: str,
    storage_options: dict[str, str],
    write_id: WriteId,
    parts: Sequence[Part],
    *,
    app: tuple[str, int] | None = None,
    extra: Sequence[pa.Field] = (),
    description: Mapping[str, Any] | None = None,
    kind: TableKind = FLIGHT_LOG,
) -> CommitResult:
    """Make the parts of a successful write rows with ``committed=true``; creates the table if there is none. A second
    call with the same arguments changes nothing.

    :param parts: parts of the attempts that count; other parts in the folder of the write are added as not committed
    :param app: (query id, batch id) of a micro-batch, (``txnAppId``, ``txnVersion``) of a batch write that has them; if
        the table has recorded this version or a higher one, the parts are added as not committed
    :param extra: the columns named by ``flightLogColumns``; new ones are added to the table
    :param description: description of the run, for readers of the table: goes into the commit as JSON; no secrets
    :raises FlightLogError: another table, a column with another type, files of others, or a part that is not there as
        its task wrote it; then nothing was committed
    :raises Unavailable: storage cannot be reached, or conflicts do not end
    """
    target = TargetTable(kind, TableStore(table_uri, storage_options), extra, description)
    folder = f"{PARTS}/{write_id.prefix}"

    def plan(table: DeltaTable) -> CommitPlan:
        recorded = app is not None and _is_recorded(table, app)
        named = {p.path for p in parts}
        files = target.store.list_files(folder)
        unlisted = [i for i in files if i.path not in named]
        # where the version is not recorded, no part of it is in the table: the file list need not be read
        none_known = app is not None and not recorded and not unlisted
        active, known = ({}, set()) if none_known else known_files(table)
        others = unknown_parts(target.store, table, unlisted, known)
        # a part that was adopted as an orphan is added again: the later entry for a path replaces the earlier
        committed = [] if recorded else [p for p in parts if p.path not in known or active.get(p.path) is False]
        uncommitted = [p for p in (*others, *(parts if recorded else ())) if p.path not in known]
        _require_written(target, [*committed, *(p for p in uncommitted if p.path in named)], files)
        # or by this one, whose answer was lost
        ours = any(active.get(p.path) for p in parts) if parts else recorded and target.is_described_in(table)
        return CommitPlan(committed, uncommitted, None if recorded else app, recorded and not ours)

    def prove_all() -> None:
        _require_written(target, parts, target.store.list_files(folder))

    return execute(target, plan, prove_all)


def abort(
    table_uri: str,
    storage_options: dict[str, str],
    write_id: WriteId,
    parts: Sequence[Part] = (),
    *,
    app: tuple[str, int] | None = None,
    extra: Sequence[pa.Field] = (),
    description: Mapping[str, Any] | None = None,
    kind: TableKind = FLIGHT_LOG,
) -> CommitResult:
    """Add all parts of a failed write that are there as not committed; none if this write has been committed. The
    folder of the write is searched for other parts than ``parts``. Safe to repeat, also after a commit that raised."""
    target = TargetTable(kind, TableStore(table_uri, storage_options), extra, description)
    folder = f"{PARTS}/{write_id.prefix}"
    named = {p.path for p in parts}

    def plan(table: DeltaTable) -> CommitPlan:
        if app is not None and _is_recorded(table, app):
            return CommitPlan(recorded=True)
        active, known = known_files(table)
        if any(ok for path, ok in active.items() if path.startswith(folder + "/")):
            return CommitPlan(recorded=True)
        files = target.store.list_files(folder)
        orphans = unknown_parts(target.store, table, [i for i in files if i.path not in named], known)
        missing = {p.path for p in _unwritten(target.store, [p for p in parts if p.path not in known], files)}
        if missing:
            logger.warning("%s %s: %d files are not there: %s", target.what, store.uri, len(missing), min(missing))
        return CommitPlan([], [p for p in (*parts, *orphans) if p.path not in known | missing])

    store = target.store
    with storage_errors(f"{target.what} {store.uri}", store.options):
        if not store.list_files(folder) and store.table() is None:
            return CommitResult(-1)
    return execute(target, plan)


def _require_written(target: TargetTable, parts: Sequence[Part], files: Sequence[pafs.FileInfo]) -> None:
    """Check that the parts are in storage as their tasks wrote them.

    :raises FlightLogError: one of the parts is not there, or not as its task described it
    """
    wrong = _unwritten(target.store, parts, files)
    if wrong:
        cure = "something has removed or changed them" if target.store.local is None else SHARE_IT
        raise FlightLogError(
            f"{target.what} {target.store.uri}: {len(wrong)} of the {len(parts)} files that the tasks wrote are not "
            f"there as they wrote them (the first: {wrong[0].path}, {wrong[0].size:,} bytes). The rows were published, "
            f"and their outcomes are not in the table: {cure}"
        )


def _unwritten(store: TableStore, parts: Sequence[Part], files: Sequence[pafs.FileInfo]) -> list[Part]:
    """A part that the listing lacks is looked up by name: some network file systems list a new file later."""
    sizes = {i.path: i.size for i in files}
    wrong = [p for p in parts if sizes.get(p.path) != p.size]
    if not wrong or (store.local is not None and not store.local.is_dir()):
        return wrong
    again = store.filesystem().get_file_info([p.path for p in wrong])
    return [p for p, info in zip(wrong, again, strict=True) if info.size != p.size]


def _is_recorded(table: DeltaTable, app: tuple[str, int]) -> bool:
    version = table.transaction_version(app[0])
    return version is not None and version >= app[1]
