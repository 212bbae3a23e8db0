"""Delta's log as delta-rs shows it, over :mod:`.storage`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self

import deltalake
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from .storage import Entry, SimFileSystem, SimHandler, SimParquetFile, SimParquetWriter, Storage


class SimTable:
    """See ``deltalake.DeltaTable``: a table as it was when it was read."""

    def __init__(self, table_uri: str, **_: Any) -> None:
        self.table_uri, self._store = table_uri, Storage.of_run()
        self._entry = self._newest()

    def _newest(self) -> Entry:
        log = self._store.ask("read the table", lambda: list(self._store.logs.get(self.table_uri, [])[-1:]))
        if not log:
            raise TableNotFoundError(f"no log files in {self.table_uri}")
        return log[0]

    def version(self) -> int:
        return self._entry.version

    def schema(self) -> deltalake.Schema:
        return self._entry.schema

    def metadata(self) -> SimpleNamespace:
        entry = self._entry
        return SimpleNamespace(configuration=dict(entry.configuration), partition_columns=list(entry.partition_by))

    def protocol(self) -> SimpleNamespace:
        return SimpleNamespace(min_reader_version=1, min_writer_version=2, reader_features=None, writer_features=None)

    def update_incremental(self) -> None:
        self._entry = self._newest()

    def create_checkpoint(self) -> None:
        self._store.ask("write a checkpoint", lambda: None, writes=True)

    def transaction_version(self, app_id: str) -> int | None:
        return self._entry.apps.get(app_id)

    def get_add_actions(self, flatten: bool = False) -> pa.Table:
        active = self._entry.active
        committed = [action.partition_values["committed"] == "true" for action in active.values()]
        return pa.table({"path": pa.array(active, pa.string()), "partition.committed": pa.array(committed, pa.bool_())})

    def vacuum(self, retention_hours: float, dry_run: bool, enforce_retention_duration: bool) -> list[str]:
        assert dry_run
        return sorted(self._entry.removed)

    @property
    def alter(self) -> Self:
        return self

    def add_feature(self, *_: object, **__: object) -> None: ...

    def add_columns(self, fields: Sequence[deltalake.Field]) -> None:
        entry = self._entry
        self._put(schema=deltalake.Schema([*entry.schema.fields, *fields]))

    def create_write_transaction(
        self,
        actions: Iterable[AddAction | RemoveAction],
        mode: str,
        schema: deltalake.Schema,
        *,
        partition_by: Sequence[str],
        commit_properties: Any,
        post_commithook_properties: Any,
    ) -> None:
        entry = self._entry
        active, removed, apps = dict(entry.active), set(entry.removed), dict(entry.apps)
        for action in actions:
            if isinstance(action, AddAction):
                assert tuple(action.partition_values) == entry.partition_by, "values of other partition columns"
                active[action.path] = action
                removed.discard(action.path)
            else:
                active.pop(action.path, None)
                removed.add(action.path)
        apps.update({app.app_id: app.version for app in commit_properties.app_transactions or ()})
        metadata = commit_properties.custom_metadata or {}
        self._put(active=active, removed=frozenset(removed), apps=apps, metadata=metadata)

    def _put(self, **changes: Any) -> None:
        """The table that was read stays as it is, as with delta-rs it is of no use until it is read again."""
        entry = _changed(self._entry, **changes)
        told = f"commit version {entry.version} of {self.table_uri}, {len(entry.active)} files, {dict(entry.apps)}"
        self._store.ask(told, lambda: self._store.put_entry(self.table_uri, entry), writes=True, commits=True)
        self._entry = entry


def _changed(entry: Entry, **changes: Any) -> Entry:
    known = {name: getattr(entry, name) for name in Entry.__slots__}
    return Entry(**{**known, "metadata": {}, **changes, "version": entry.version + 1})


def foreign_commit(store: Storage, uri: str) -> None:
    """Somebody else commits to a table, if it is there."""
    if store.logs.get(uri):
        store.put_entry(uri, _changed(store.logs[uri][-1]))


def create_table(
    table_uri: str,
    schema: deltalake.Schema,
    add_actions: Sequence[AddAction],
    mode: str,
    partition_by: Sequence[str],
    *,
    storage_options: Any = None,
    configuration: Mapping[str, str] | None = None,
) -> None:
    """See ``deltalake.transaction.create_table_with_add_actions``, with ``mode="ignore"``."""
    assert mode == "ignore"
    assert not add_actions
    store = Storage.of_run()
    entry = Entry(0, schema, configuration or {}, tuple(partition_by), {}, frozenset(), {}, {})
    if store.ask("look for a table", lambda: bool(store.logs.get(table_uri))):
        return
    store.ask("create the table", lambda: store.put_entry(table_uri, entry), writes=True, commits=True)


def replaced() -> dict[int, Any]:
    """By the identity of what is real: what stands in its place."""
    return {
        id(DeltaStorageHandler): SimHandler,
        id(deltalake.DeltaTable): SimTable,
        id(transaction.create_table_with_add_actions): create_table,
        id(pafs): SimpleNamespace(
            PyFileSystem=SimFileSystem, FileSelector=pafs.FileSelector, FileType=pafs.FileType, FileInfo=pafs.FileInfo
        ),
        id(pq): SimpleNamespace(ParquetWriter=SimParquetWriter, ParquetFile=SimParquetFile),
    }
