"""Maintains the table of a flight log or of dead letters, beside writers and readers of it.

Files are taken out of the table by a commit that must be the next version: after a conflict the table is read again,
and the files must still be there. (``optimize.compact`` of delta-rs does not check that: two at once double rows.)
Storage keeps these files for the table's own retention, for readers that run and for time travel.

Rows of attempts that were not committed are merged late: a commit may still make them committed by adding their part
again, which it cannot when they are in a file with others (:mod:`.commit`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ..contracts.errors import FlightLogError, Unavailable
from .folder import PARTS
from .orphaned_parts import known_files, oldest_addable, unknown_parts
from .parts import GROUP_BYTES, OpenPart, Part
from .schema import DEAD_LETTER_TABLE, FLIGHT_LOG, OWN_NAMES, PARTITION_COLUMNS, part_schema
from .storage import TableStore, check_features, reading_errors, storage_errors
from .transaction import MAX_ATTEMPTS, CommitPlan, TargetTable, add_action, add_and_remove, await_next_attempt, execute

logger = logging.getLogger("mama_spark")

#: Bytes of files that are merged into one; files of this size or more are left as they are.
TARGET_BYTES = 100 << 20
#: The same for compaction within a commit: bounds what a micro-batch waits for. Later maintenance merges these files.
COMMIT_TARGET_BYTES = 16 << 20

#: Age from which on a part that no commit refers to is of a job that was killed, unless somebody says otherwise.
ORPHAN_AGE = timedelta(days=1)

#: Features of Delta with which the rows of a table are not simply those of its files.
_FOREIGN = frozenset({"deletionVectors", "columnMapping"})

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _File:
    """A data file of the table.

    :ivar path: path in the table
    :ivar modified: ms since the epoch
    """

    path: str
    size: int
    event_date: str
    committed: bool
    modified: int

    def removal(self, data_change: bool) -> RemoveAction:
        values: dict[str, str | None] = {
            "event_date": self.event_date,
            "committed": "true" if self.committed else "false",
        }
        # Time of day: stamps, and is compared with the times of files and with dates, by days.
        return RemoveAction(self.path, data_change, time.time_ns() // 1_000_000, self.size, values)


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """Result of :func:`maintain`, done or only planned.

    :ivar adopted: orphaned parts that were added as not committed
    :ivar expired: files whose rows were older than what is kept
    :ivar compacted: files that were merged, into ``written`` files; a dry run knows only files that may be merged
    :ivar vacuumed: files that were removed from storage
    :ivar files: number of files of the table, before the first step and after the last
    :ivar version: version of the table after the last step
    """

    dry_run: bool
    adopted: int
    expired: int
    compacted: int
    written: int
    vacuumed: int
    files: tuple[int, int]
    version: int

    def json_fields(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        done = "would be" if self.dry_run else "were"
        merged = f"{self.compacted:,} files {done} merged" + ("" if self.dry_run else f" into {self.written:,}")
        files = f"{self.files[0]:,} files" + ("" if self.dry_run else f" before, {self.files[1]:,} now")
        return (
            f"{self.adopted:,} orphaned parts {done} added, {self.expired:,} files of expired rows {done} dropped, "
            f"{merged}, {self.vacuumed:,} files {done} removed from storage; {files}, version {self.version}"
        )


STEPS = 5


def maintain(
    path: str,
    storage: dict[str, str],
    keep: timedelta | None = None,
    older_than: timedelta = ORPHAN_AGE,
    dry_run: bool = False,
    on_step: Callable[[], object] = lambda: None,
) -> MaintenanceResult:
    """Add orphans, drop expired rows, compact, write a checkpoint, vacuum: in this order. May be repeated at will.

    Orphans come first, because vacuum removes files that no commit refers to. Vacuum removes files that left the table,
    or never were in it, longer ago than ``delta.deletedFileRetentionDuration`` of the table (one week by default).

    :param path: path of a flight log or a dead-letter table
    :param keep: rows whose ``event_date`` (UTC) is older are dropped; None = all are kept
    :param older_than: age of orphaned parts that are added; must exceed the longest batch
    :param on_step: called after each of :data:`STEPS` steps
    :raises FlightLogError: no such table
    :raises Unavailable: storage cannot be reached, or conflicts do not end
    """
    store = TableStore(path, storage)
    table = _open(store)
    check_features(table, "maintain")
    before = _files(table)
    adopted = adopt_orphans(path, storage, older_than, dry_run)
    on_step()
    expired = 0 if keep is None else _drop_expired(store, keep, dry_run)
    on_step()
    merged, written = compact(store, TARGET_BYTES, late=True, dry_run=dry_run)
    on_step()
    if not dry_run:
        _repeat(store, "writing a checkpoint", lambda table: table.create_checkpoint())
    on_step()
    vacuumed = _repeat(
        store, "vacuum", lambda table: table.vacuum(dry_run=dry_run, enforce_retention_duration=True, full=True)
    )
    on_step()
    table = _open(store)
    return MaintenanceResult(
        dry_run, len(adopted.parts), expired, merged, written, len(vacuumed), (before, _files(table)), table.version()
    )


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    """Orphaned parts, to which no commit referred, and the version of the table that has them; None for a dry run."""

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
    """Add parts that no commit refers to, and that are older than ``older_than``, which must exceed the longest batch,
    as not committed. Files older than the table remembers removals (seven days unless
    ``delta.deletedFileRetentionDuration`` says otherwise) are left alone: they may have been compacted away.

    :raises FlightLogError: no parts and no table there, or another table
    """
    store, found = TableStore(path, storage), list[Part]()
    # Time of day: is compared with the times of files, by days.
    newest = datetime.now(UTC) - older_than
    with storage_errors(f"adopting orphans of {path}", storage):
        files, table = store.list_files(PARTS), store.table()
        if table is None and not files:
            raise FlightLogError(f"{path}: neither a flight log nor parts of one")
        known = set() if table is None or not files else known_files(table)[1]
        infos = [i for i in files if i.mtime is not None and i.mtime <= newest and i.path not in known]
        if not infos or dry_run:  # only the unknown ones are opened: of a log that is kept small, few
            found = unknown_parts(store, table, infos, known) if infos and table else []
            return AdoptionResult(found, None if dry_run else -1 if table is None else table.version())

        def plan(table: DeltaTable) -> CommitPlan:
            found[:] = unknown_parts(store, table, infos, known_files(table)[1])
            return CommitPlan([], list(found))

        return AdoptionResult(found, execute(_target(store, infos), plan).version)


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


def compact(store: TableStore, target_bytes: int, *, late: bool = False, dry_run: bool = False) -> tuple[int, int]:
    """Merge small files of committed rows of one ``event_date``, in bounded memory; one commit for each file made.

    :param late: merge files of other attempts, too, of days to which no commit has added any for as long as the table
        keeps removed files
    :returns: files that were merged, and files that were made of them
    :raises FlightLogError: no such table, or one with features that only Spark maintains
    :raises Unavailable: storage cannot be reached, or conflicts do not end
    """
    table = _open(store)
    foreign = sorted(_FOREIGN & {*(table.protocol().reader_features or ())})
    if foreign:
        raise FlightLogError(f"{store.uri} uses {foreign[0]}: compact it with Spark, by OPTIMIZE ... WHERE committed")
    merged = written = 0
    for group in _groups(table, target_bytes, late):
        if dry_run or _merge(store, table, group):
            merged, written = merged + len(group), written + (not dry_run)
    return merged, written


def compact_after_commit(path: str, storage: dict[str, str]) -> None:
    """Call :func:`compact` after a commit that has succeeded: what fails here is logged and not raised."""
    try:
        compact(TableStore(path, storage), COMMIT_TARGET_BYTES)
    except Exception as e:  # noqa: BLE001  the batch is committed; a raise would make Spark publish it again
        logger.warning("flightLogCompactEvery: the batch is committed, and its flight log was not compacted: %s", e)


def _groups(table: DeltaTable, target_bytes: int, late: bool) -> Iterator[list[_File]]:
    newest = oldest_addable(table).timestamp() * 1000 if late else float("-inf")
    partitions: dict[tuple[str, bool], list[_File]] = defaultdict(list)
    for file in _active(table):
        partitions[file.event_date, file.committed].append(file)
    for _, files in sorted(partitions.items()):
        if not files[0].committed and max(f.modified for f in files) >= newest:
            continue
        group: list[_File] = []
        size = 0
        for file in sorted((f for f in files if f.size < target_bytes), key=lambda f: (f.modified, f.path)):
            group.append(file)
            size += file.size
            if size >= target_bytes:
                yield group
                group, size = [], 0
        if len(group) > 1:
            yield group


def _merge(store: TableStore, table: DeltaTable, group: Sequence[_File]) -> bool:
    """Write one file with the rows of a group and let it replace them; False if others have removed one of them."""
    with reading_errors(f"compacting {store.uri}", store.options):
        part = _write(store, part_schema(pa.schema(table.schema().to_arrow())), group)
    actions: list[AddAction | RemoveAction] = [add_action(part, group[0].committed, data_change=False)]
    actions += (f.removal(False) for f in group)
    done = False
    try:
        done = _commit_if_there(store, "compacting", group, actions)
    finally:
        if not done:
            with suppress(OSError):  # vacuum removes it later
                store.filesystem().delete_file(part.path)
    return done


def _write(store: TableStore, schema: pa.Schema, group: Sequence[_File]) -> Part:
    folder = f"event_date={group[0].event_date}/committed={'true' if group[0].committed else 'false'}"
    made = OpenPart(store, f"{folder}/part-{uuid.uuid4()}.zstd.parquet", schema)
    made.begin(group[0].event_date)
    try:
        for file in group:
            with (
                store.filesystem().open_input_file(unquote(file.path)) as source,
                pq.ParquetFile(source, pre_buffer=False) as parquet,
            ):
                for batch in parquet.iter_batches(batch_size=_batch_rows(parquet.metadata)):
                    made.add(_with_schema(batch, schema))
        return made.close()
    except BaseException:
        made.abandon()
        raise


def _batch_rows(file: pq.FileMetaData) -> int:
    groups = [file.row_group(i) for i in range(file.num_row_groups)]
    fitting: list[int] = [g.num_rows * GROUP_BYTES // max(1, g.total_byte_size) for g in groups]
    return max(1, min([8_192, *fitting]))


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with nulls for the columns that the table got after the file."""
    there = set(batch.schema.names)
    columns = [
        batch.column(f.name).cast(f.type) if f.name in there else pa.nulls(batch.num_rows, f.type) for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _commit_if_there(
    store: TableStore, doing: str, files: Sequence[_File], actions: list[AddAction | RemoveAction]
) -> bool:
    """Commit the actions to a table that still has all the files; False if it has not."""

    def act(table: DeltaTable) -> bool:
        if {f.path for f in files} - {f.path for f in _active(table)}:
            return False
        add_and_remove(table, actions)
        return True

    return _repeat(store, doing, act)


def _active(table: DeltaTable) -> list[_File]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = ("path", "size_bytes", *(f"partition.{name}" for name in PARTITION_COLUMNS), "modification_time")
    columns = [actions[name].to_pylist() for name in names]
    return [_File(path, size, str(day), ok, at) for path, size, day, ok, at in zip(*columns, strict=True)]


def _drop_expired(store: TableStore, keep: timedelta, dry_run: bool) -> int:
    """Whole days only, so no file is read or written."""
    first = (datetime.now(UTC) - keep).date().isoformat()
    for _ in range(MAX_ATTEMPTS):
        expired = [f for f in _active(_open(store)) if f.event_date < first]
        removals: list[AddAction | RemoveAction] = [f.removal(True) for f in expired]
        if not expired or dry_run or _commit_if_there(store, "dropping expired rows", expired, removals):
            return len(expired)
    raise Unavailable(f"dropping expired rows: {store.uri}: others always removed some of the files; try again")


def _repeat(store: TableStore, doing: str, act: Callable[[DeltaTable], _Result]) -> _Result:
    for attempt in range(MAX_ATTEMPTS):
        with storage_errors(f"{doing}: {store.uri}", store.options):
            table = _open(store)
            version = table.version()
            try:
                return act(table)
            except CommitFailedError as e:
                await_next_attempt(store, version, e, attempt)
    raise Unavailable(f"{doing}: {store.uri}: {MAX_ATTEMPTS} attempts to commit met commits of others; try again")


def _open(store: TableStore) -> DeltaTable:
    with storage_errors(store.uri, store.options):
        table = store.table()
    if table is None:
        raise FlightLogError(f"{store.uri}: no flight log there")
    if table.metadata().partition_columns != list(PARTITION_COLUMNS):
        raise FlightLogError(f"{store.uri} is a table, but neither a flight log nor a dead-letter table")
    return table


def _files(table: DeltaTable) -> int:
    return len(table.file_uris())
