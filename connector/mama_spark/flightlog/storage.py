"""Access to the folder of a Delta table, local or in an object store, through delta-rs with one set of options."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from ..contracts.errors import FlightLogError, SchemaError, Unavailable
from ..contracts.redaction import redact, safe_cause, secret_values
from ..options.paths import local_path
from .folder import DELTA_LOG, make_folder, may_pass, require_free, require_readable_name
from .schema import OWN_NAMES, PARTITION_COLUMNS

logger = logging.getLogger("mama_spark")

#: Texts of final errors of object stores and delta-rs; file systems have numbers (:func:`may_pass`).
_FINAL = (
    "permission denied",
    "accessdenied",
    "access denied",
    "forbidden",
    "nosuchbucket",
    "not a directory",
    "read-only file system",
    "don't have access",
    "kernel error: unsupported",
    "catalog-managed table",
)
#: Texts of delta-rs for a transaction log that cannot be read.
_DAMAGED = ("Kernel error: Json error", "No table metadata or protocol found")
#: Features of Delta that tables may have which delta-rs commits to; to others no try succeeds.
WRITABLE_FEATURES = frozenset({
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
    "invariants", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview",
})  # fmt: skip
#: Of Rust, in its errors.
_BACKTRACE = re.compile(r"\s*\n\s*0: .*", re.DOTALL)


@contextmanager
def storage_errors(doing: str, options: Mapping[str, str]) -> Iterator[None]:
    """Translate errors of pyarrow and delta-rs.

    :param options: options of the storage; their secrets are shown by no error
    :raises FlightLogError: no permission, no such bucket, not a table, a damaged one
    :raises Unavailable: everything else: full disk, storage not reached
    """
    try:
        yield
    except (OSError, DeltaError) as e:
        secrets = secret_values(options)
        text = redact(_BACKTRACE.sub("", str(e)).strip(), secrets) or type(e).__name__
        if any(s in text for s in _DAMAGED):
            raise FlightLogError(
                f"{doing}: the table is damaged: {text}; restore it, or use another path"
            ) from safe_cause(e, secrets)
        final = any(s in text.lower() for s in _FINAL) or (isinstance(e, OSError) and not may_pass(e))
        raise (FlightLogError if final else Unavailable)(f"{doing}: {text}") from safe_cause(e, secrets)


@contextmanager
def reading_errors(doing: str, options: Mapping[str, str]) -> Iterator[None]:
    """Translate errors like :func:`storage_errors`; FlightLogError also if a file of a table is damaged or missing."""
    with storage_errors(doing, options):
        try:
            yield
        except (pa.ArrowInvalid, FileNotFoundError) as e:
            secrets = secret_values(options)
            raise FlightLogError(
                f"{doing}: a file of the table is damaged or missing: {redact(str(e), secrets)}; restore it"
            ) from safe_cause(e, secrets)


class TableStore:
    """The folder of one table. Nothing is opened before the first call. FlightLogError: delta-rs would look for it
    elsewhere.

    :param uri: a path, or a URL that delta-rs takes (``file:``, ``s3://``, ``s3a://``, ``abfss://``, ``gs://``, ..)
    """

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        require_readable_name(uri)
        self.uri = uri.rstrip("/") or uri
        self.options = options
        self._handler: Any = None

    @property
    def local(self) -> Path | None:
        """The folder, if it is on this machine."""
        path = local_path(self.uri)
        return None if path is None else Path(path)

    def ensure_folder(self) -> None:
        if self.local is not None:
            make_folder(str(self.local))

    def require_free(self, what: str) -> None:
        """Check that a folder without a table holds no files of others.

        :raises FlightLogError: it does
        """
        if self.local is not None:
            names = os.listdir(self.local) if self.local.is_dir() else []
        else:
            infos = self.filesystem().get_file_info(pafs.FileSelector("", allow_not_found=True))
            names = [posixpath.basename(i.path) for i in infos]
        require_free(names, self.uri, what)

    @property
    def handler(self) -> Any:
        if self._handler is None:
            self._handler = DeltaStorageHandler(self.uri, self.options)
        return self._handler

    def filesystem(self) -> pafs.PyFileSystem:
        return pafs.PyFileSystem(self.handler)

    def list_files(self, under: str) -> list[pafs.FileInfo]:
        """The finished Parquet files below the folder ``under``, sorted by path; none if it does not exist."""
        if self.local is not None and not (self.local / under).is_dir():
            return []
        selector = pafs.FileSelector(under, allow_not_found=True, recursive=True)
        infos = self.filesystem().get_file_info(selector)
        found = [i for i in infos if i.type == pafs.FileType.File and i.path.endswith(".parquet")]
        return sorted(found, key=lambda i: i.path)

    def table(self) -> DeltaTable | None:
        """The table as it is now; None if there is none yet."""
        if self.local is not None and self.local.is_file():
            raise FlightLogError(f"{self.local} is a file, not the folder of a table: name another path")
        try:
            return DeltaTable(self.uri, storage_options=self.options, without_files=False)
        except TableNotFoundError:
            return None


class _KeptTable:
    """A table that a thread reads again after a commit, for the next; ``entry``: newest then, None = unusable."""

    def __init__(self, table: DeltaTable, store: TableStore, version: int, checkpoint: bool) -> None:
        self.table = table
        self._store, self._version, self._checkpoint = store, version, checkpoint
        self.entry: _LogEntry | None = None
        # no daemon: the interpreter must not end while delta-rs is about to return to it
        self.refresh = Thread(target=self._refresh, name="flight-log-table")

    def _refresh(self) -> None:
        store, version = self._store, self._version
        with suppress(OSError, DeltaError):  # then the next commit reads the table, and raises
            before = _log_entry(store, version)
            self.table.update_incremental()
            if self._checkpoint:
                self._write_checkpoint()
            if self.table.version() == version and _log_entry(store, version) == before:
                self.entry = before

    def _write_checkpoint(self) -> None:
        """Write a checkpoint and read the table from it: each commit reads the entries after the checkpoint again."""
        try:
            self.table.create_checkpoint()
        except (OSError, DeltaError) as e:
            secrets = secret_values(self._store.options)
            logger.warning("no checkpoint of %s was written: %s", redact(self._store.uri), redact(str(e), secrets))
        read = self._store.table()
        if read is not None:
            self.table = read


@dataclass(frozen=True, slots=True)
class _LogEntry:
    version: int
    size: int
    mtime_ns: int


class KeptTables:
    """Tables that this process has committed to, as they are now, for its next commit to them.

    After a commit the table is read in the background, while Spark does something else; the next commit needs not read
    it. A kept table is given out only if its newest entry is still the newest of the log and was not written again:
    neither did others commit, nor was the table removed and made anew. A commit of others between this check and our
    commit conflicts with ours, as with any other reader of the table.
    """

    MOST = 4

    def __init__(self) -> None:
        self._tables: dict[tuple[Any, ...], _KeptTable | None] = {}
        self._lock = Lock()

    def take(self, store: TableStore) -> DeltaTable | None:
        """The table as it is now, for one thread alone; None if it must be read."""
        with self._lock:
            kept = self._tables.get(_key(store))
            if kept is None:
                return None
            self._tables[_key(store)] = None
        kept.refresh.join()
        if kept.entry is None or _log_entry(store, kept.entry.version) != kept.entry:
            return None
        return kept.table if _log_entry(store, kept.entry.version + 1) is None else None

    def keeps(self, store: TableStore) -> bool:
        """Whether the table is kept after the next commit."""
        with self._lock:
            return _key(store) in self._tables

    def committed(self, store: TableStore, table: DeltaTable, version: int, *, checkpoint: bool) -> None:
        """After a commit that made this version. From the second commit on, the table is kept.

        :param table: the caller uses it no more
        :param checkpoint: checkpoint of this version, to be written in the background; only if the table is kept
        """
        kept = _KeptTable(table, store, version, checkpoint)
        with self._lock:
            if (key := _key(store)) not in self._tables:
                if len(self._tables) >= self.MOST:
                    del self._tables[next(iter(self._tables))]
                self._tables[key] = None
                return
            self._tables[key] = kept
            kept.refresh.start()


def _key(store: TableStore) -> tuple[Any, ...]:
    return os.getpid(), store.uri, tuple(sorted(store.options.items()))


def _log_entry(store: TableStore, version: int) -> _LogEntry | None:
    info = store.filesystem().get_file_info(f"{DELTA_LOG}/{version:020d}.json")
    if info.type != pafs.FileType.File or info.mtime_ns is None:
        return None
    return _LogEntry(version, info.size, info.mtime_ns)


KEPT_TABLES = KeptTables()


def active_paths(table: DeltaTable) -> dict[str, bool]:
    """Path of each file of the table -> its ``committed``."""
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = [unquote(p) for p in actions["path"].to_pylist()]
    return dict(zip(paths, actions["partition.committed"].to_pylist(), strict=True))


def removed_paths(table: DeltaTable) -> set[str]:
    """Files that the log of the table lists as removed (by a compaction or a delete)."""
    dropped = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
    return {unquote(posixpath.normpath(p)) for p in dropped}


def existing_table(store: TableStore, schema: pa.Schema, what: str, extra: frozenset[str]) -> DeltaTable | None:
    """The table, if a commit to it can succeed; None = there is none, and there may be. FlightLogError: as
    :func:`check_table_schema`, or the folder holds files of others. Unavailable: storage cannot be reached."""
    with storage_errors(f"{what} {store.uri}", store.options):
        table = store.table()
        if table is None:
            store.require_free(what)
        else:
            check_table_schema(table, schema, what, extra)
    return table


def check_features(table: DeltaTable, what: str, missing: Sequence[str] = ()) -> None:
    """Check that commits of this package to the table can succeed, by its features.

    :param missing: columns that are to be added
    :raises FlightLogError: the table has a feature with which no commit of this package succeeds, or makes rows
    """
    protocol = table.protocol()
    features = {*(protocol.writer_features or ())}
    if protocol.writer_features is None and protocol.min_writer_version >= 6:
        features.add("identityColumns")
    unknown = sorted(features - WRITABLE_FEATURES)
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        renamed = [f.name for f in table.schema().fields if f.metadata.get(_PHYSICAL_NAME, f.name) != f.name]
        if mode != "name" or renamed or missing:
            unknown.append("columnMapping" + (f" (see column {[*renamed, *missing][0]})" if renamed or missing else ""))
    if unknown:
        raise FlightLogError(
            f"{what}: {table.table_uri} has features of Delta that this package cannot write with: "
            f"{', '.join(unknown)}; name another path, or drop them with Spark (ALTER TABLE ... DROP FEATURE)"
        )


_PHYSICAL_NAME = "delta.columnMapping.physicalName"


def check_table_schema(table: DeltaTable, schema: pa.Schema, what: str, extra: frozenset[str]) -> list[pa.Field]:
    """Check that rows of a flight log or of dead letters can be committed to the table.

    :param extra: columns of ``schema`` that the table may lack
    :returns: the fields of ``schema`` that the table lacks
    :raises FlightLogError: it is another table, a column has another type or its name another case, or as
        :func:`check_features`
    """
    there = {f.name: f.type for f in pa.schema(table.schema().to_arrow())}
    missing = [f for f in schema if f.name not in there]
    foreign = [f.name for f in missing if f.name not in extra]
    foreign += [name for name in there if name in OWN_NAMES and name not in schema.names]  # a flight log
    if foreign or table.metadata().partition_columns != list(PARTITION_COLUMNS):
        raise FlightLogError(
            f"{what}: {table.table_uri} is another table"
            + (f" (see its columns: {', '.join(foreign[:5])})" if foreign else " (it is partitioned differently)")
        )
    check_features(table, what, [f.name for f in missing])
    spelt = {name.lower(): name for name in there}
    for field in missing:
        if (other := spelt.get(field.name.lower())) is not None:
            raise FlightLogError(
                f"{what}: column {field.name!r} differs only by case from column {other!r} of {table.table_uri}; "
                f"rename it to {other!r} in the DataFrame or use another table"
            )
    for field in schema:
        if field.name in there and not _same_delta_type(there[field.name], field.type):
            raise FlightLogError(
                f"{what}: column {field.name!r} is {there[field.name]} in {table.table_uri} and {field.type} here; "
                f"rename the column or use another table"
            )
    return missing


def delta_fields(schema: pa.Schema) -> list[Field]:
    """The columns as Delta's fields.

    :raises SchemaError: a type that Delta does not have
    """
    fields = []
    for f in schema:
        try:
            fields += Schema.from_arrow(pa.schema([f])).fields
        except Exception as e:
            raise SchemaError(f"a Delta table cannot hold column {f.name!r} of type {f.type}") from e
        if pa.types.is_null(f.type):
            raise SchemaError(f"a Delta table cannot hold column {f.name!r}: it has no type but null")
        if _has_ntz_in_map(f.type):
            raise SchemaError(
                f"a Delta table cannot hold column {f.name!r}: it has timestamp_ntz in a map; cast it to timestamp"
            )
    return fields


def _has_ntz_in_map(kind: pa.DataType, in_map: bool = False) -> bool:
    """Whether a map in the type has timestamp_ntz: delta-rs makes a table without the feature that readers need."""
    if pa.types.is_timestamp(kind):
        return in_map and kind.tz is None
    in_map = in_map or pa.types.is_map(kind)
    return any(_has_ntz_in_map(kind.field(i).type, in_map) for i in range(kind.num_fields))


def _same_delta_type(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether two types are one, up to nullability. (Arrow has several types for one of Delta.)"""
    return bool(a.equals(b)) or _without_nullability(a) == _without_nullability(b)


def _without_nullability(kind: pa.DataType) -> Any:
    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            loose = ("nullable", "containsNull", "valueContainsNull", "metadata")
            return {k: strip(v) for k, v in node.items() if k not in loose}
        return [strip(v) for v in node] if isinstance(node, list) else node

    return strip(json.loads(delta_fields(pa.schema([pa.field("x", kind)]))[0].to_json())["type"])
