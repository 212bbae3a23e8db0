"""Adds part files that killed jobs left on storage to the table, with ``committed=false``.

A commit adds what failed attempts at *its* batch left; nothing else does that for a job that is never started again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..contracts.errors import FlightLogError
from .commit import commit_orphans, known_files
from .folder import PARTS
from .parts import Part
from .schema import DEAD_LETTER_TABLE, FLIGHT_LOG, OWN_NAMES
from .storage import TableStore, storage_errors
from .transaction import TargetTable

#: Age from which on a part that no commit refers to is of a job that was killed, unless somebody says otherwise.
ORPHAN_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    """Orphaned parts, and what was done with them.

    :ivar parts: files that no commit referred to
    :ivar version: of the table that now has them; None for a dry run
    """

    parts: list[Part]
    version: int | None

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.parts)

    def text(self) -> str:
        done = "would be added" if self.version is None else "added"
        return f"{len(self.parts)} parts with {self.rows} rows {done} as not committed"


def adopt_orphans(
    path: str, storage: dict[str, str], older_than: timedelta = ORPHAN_AGE, dry_run: bool = False
) -> AdoptionResult:
    """Add parts that no commit refers to, and that are older than ``older_than``, as not committed.

    ``older_than`` must exceed the longest batch. Files older than the table remembers removals (seven days unless
    ``delta.deletedFileRetentionDuration`` says otherwise) are left alone: they may have been compacted away.

    :param path: of a flight log or a dead-letter table
    :raises FlightLogError: no parts and no table there, or another table
    """
    store = TableStore(path, storage)
    # Time of day: is compared with the times of files, by days.
    newest = datetime.now(UTC) - older_than
    with storage_errors(f"adopting orphans of {path}", storage):
        infos = [i for i in store.list_files(PARTS) if i.mtime is not None and i.mtime <= newest]
        table = store.table()
        if table is None and not store.list_files(PARTS):
            raise FlightLogError(f"{path}: neither a flight log nor parts of one")
        if table is not None:  # only the others are opened: of a log that is kept small, few
            known = known_files(table)[1]
            infos = [i for i in infos if i.path not in known]
        if not infos:
            return AdoptionResult([], None if dry_run else (-1 if table is None else table.version()))
        target = _target(store, infos)
        orphans, result = commit_orphans(target, infos, dry_run)
        return AdoptionResult(orphans, None if result is None else result.version)


def _target(store: TableStore, infos: list[pafs.FileInfo]) -> TargetTable:
    """The kind of table that the parts belong to, with all columns that any of them has."""
    extra: dict[str, pa.Field] = {}
    is_dead_letter_table = False
    for info in infos:
        try:
            with store.filesystem().open_input_file(info.path) as file:
                schema = pq.read_schema(file)
        except pa.ArrowInvalid:
            continue  # not a whole file, so not a part
        is_dead_letter_table |= "kind" not in schema.names
        extra.update((f.name, f) for f in schema if f.name not in OWN_NAMES)
    return TargetTable(DEAD_LETTER_TABLE if is_dead_letter_table else FLIGHT_LOG, store, list(extra.values()))
