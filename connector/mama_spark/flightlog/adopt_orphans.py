"""The sweep: parts that killed jobs left on storage become rows with ``committed=false``.

A commit finds what failed attempts at *its* batch left; nobody comes back for a job that was killed for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import FlightLogError
from .commit import TargetTable, adopt
from .parts import Part
from .schema import DEAD_LETTERS, OWN_NAMES, table_schema
from .storage import PARTS, TableStore, storage_errors


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    """What a sweep found.

    :ivar parts: files that no commit referred to
    :ivar version: of the table that has them now; None for a dry run
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
    path: str, storage: dict[str, str], older_than: timedelta = timedelta(days=1), dry_run: bool = False
) -> AdoptionResult:
    """Add parts that no commit refers to, and that are older than ``older_than``, as not committed.

    ``older_than`` must exceed the longest batch. Files older than the table remembers removals (seven days unless
    ``delta.deletedFileRetentionDuration`` says otherwise) are left alone: they may have been compacted away.

    :param path: of a flight log or a dead-letter table
    :raises FlightLogError: no parts and no table there, or another table
    """
    store = TableStore(path, storage)
    before = datetime.now(UTC) - older_than
    with storage_errors(f"sweeping {path}"):
        infos = [i for i in store.list_files(PARTS) if i.mtime is not None and i.mtime <= before]
        table = store.table()
        if table is None and not store.list_files(PARTS):
            raise FlightLogError(f"{path}: neither a flight log nor parts of one")
        if not infos:
            return AdoptionResult([], None if dry_run else (-1 if table is None else table.version()))
        target = _target(store, infos)
        found, done = adopt(target, infos, dry_run)
        return AdoptionResult(found, None if done is None else done.version)


def _target(store: TableStore, infos: list[pafs.FileInfo]) -> TargetTable:
    """Which kind of table the parts are of, with all columns that any of them has."""
    extra: dict[str, pa.Field] = {}
    letters = False
    for info in infos:
        try:
            with store.filesystem().open_input_file(info.path) as file:
                schema = pq.read_schema(file)
        except pa.ArrowInvalid:
            continue  # no whole file: it is nobody's part
        letters |= "kind" not in schema.names
        extra.update((f.name, f) for f in schema if f.name not in OWN_NAMES)
    if letters:
        return TargetTable(store, "deadLetterTable", DEAD_LETTERS, None)
    return TargetTable(store, "flightLog", table_schema(list(extra.values())), frozenset(extra))
