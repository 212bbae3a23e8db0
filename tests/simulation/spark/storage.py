"""The storage of the tables of a write, as the product sees it through pyarrow and delta-rs: files, and Delta's log.

Staging, commit and reading of the product run as they are; in the place of what they call are

* :class:`SimHandler`, :class:`SimFileSystem`: an object store, which shows a file when its stream is closed,
* :class:`SimParquetWriter`, :class:`SimParquetFile`: rows stay Arrow, and nothing is encoded,
* :mod:`.delta`: Delta's log by its rule: entry N is put if there is none, else it conflicts.

A request travels, is carried out at once when it arrives, whether its sender still lives or not, and the answer travels
back. :class:`Storage` has the faults.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import deltalake
import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from ..kernel import Scheduler, Signal, active

T = TypeVar("T")
_LOG = "_delta_log/"
_ROW_BYTES, _FILE_BYTES = 40, 900  #: sizes of files, which nothing but comparisons looks at


@dataclass(slots=True)
class File:
    """One object.

    :ivar rows: of a Parquet file, ``about``: its key-value metadata
    :ivar written: time of day; ``listed``: virtual time from which lists show it
    """

    size: int
    rows: list[pa.Table] = field(default_factory=list)
    about: dict[bytes, bytes] = field(default_factory=dict)
    written: float = 0.0
    listed: float = 0.0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a table's log, and what the table is with it.

    :ivar active: by path: the action that added the file
    :ivar apps: last version of each app transaction
    """

    version: int
    schema: deltalake.Schema
    configuration: Mapping[str, str]
    partition_by: tuple[str, ...]
    active: Mapping[str, AddAction]
    removed: frozenset[str]
    apps: Mapping[str, int]
    metadata: Mapping[str, Any]


class Storage:
    """All tables of a run. Faults are attributes, which a world sets and takes back.

    :ivar latency: seconds of a request's way, at most; as many for its answer
    :ivar away: nothing is reached; ``full``: nothing new is taken
    :ivar lost: how probable it is that a request is carried out and its answer lost; of commits, which are few, at
        least every second one
    :ivar late: seconds for which lists lack a new file, at most
    :ivar logs: of each table
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.latency, self.late, self.lost = 0.0, 0.0, 0.0
        self.away = self.full = False
        self.files: dict[str, File] = {}
        self.logs: dict[str, list[Entry]] = {}
        scheduler.outside.globals["storage"] = self

    @staticmethod
    def of_run() -> Storage:
        """The one of the run."""
        found: Storage = active().outside.globals["storage"]
        return found

    def ask(self, what: str, do: Callable[[], T], *, writes: bool = False, commits: bool = False) -> T:
        """Have the storage do something.

        :param writes: it needs room
        :param commits: it is there once; whose answer is lost may ask again, and meet its own
        """
        scheduler = self._scheduler
        if scheduler.current is None or scheduler.closing:
            return do()
        answers: list[T | Exception] = []
        answered = Signal(scheduler)

        def arrive() -> None:
            try:
                answers.append(self._do(do, writes, commits))
            except (OSError, DeltaError) as e:
                answers.append(e)
            scheduler.call_at(scheduler.now + self._way(), answered.fire)

        scheduler.call_at(scheduler.now + self._way(), arrive)
        answered.wait(None, f"storage: {what}")
        if isinstance(answers[0], Exception):
            scheduler.trace(f"storage: {what}: {answers[0]}")
            raise answers[0]
        if writes:
            scheduler.trace(f"storage: {what}")
        return answers[0]

    def _way(self) -> float:
        return self._scheduler.random.random() * self.latency if self.latency else 0.0

    def _do(self, do: Callable[[], T], writes: bool, commits: bool) -> T:
        if self.away or (writes and self.full):
            number = errno.EHOSTUNREACH if self.away else errno.ENOSPC
            raise OSError(number, os.strerror(number))
        result, random = do(), self._scheduler.random
        if self.lost and random.random() < (max(0.5, self.lost) if commits else self.lost):
            if commits and random.random() < 0.5:
                raise CommitFailedError("Transaction failed: version already exists")  # it asked again, and met itself
            raise OSError("Generic S3 error: error sending request: timed out")
        return result

    def put(self, path: str, file: File) -> None:
        """A file is there, instead of any that was."""
        scheduler = self._scheduler
        file.written, file.listed = scheduler.outside.time(), scheduler.now
        if self.late and not path.partition(_LOG)[1]:
            file.listed += scheduler.random.random() * self.late
        self.files[path] = file

    def put_entry(self, uri: str, entry: Entry) -> None:
        """The next entry of a table's log.

        :raises CommitFailedError: somebody has put it
        """
        log = self.logs.setdefault(uri, [])
        if entry.version != len(log):
            raise CommitFailedError(f"Transaction failed: version {entry.version} already exists")
        log.append(entry)
        self.put(f"{uri}/{_LOG}{entry.version:020d}.json", File(500 + len(entry.active)))

    def listed(self, folder: str) -> Iterator[tuple[str, File]]:
        """The files below a folder that lists show now, by path."""
        for path in sorted(self.files):
            if path.startswith(folder) and self.files[path].listed <= self._scheduler.now:
                yield path, self.files[path]

    def rows(self, uri: str, committed: bool) -> list[dict[str, Any]]:
        """The rows of the newest version of a table."""
        log, wanted = self.logs.get(uri, []), "true" if committed else "false"
        paths = [p for p, a in log[-1].active.items() if a.partition_values["committed"] == wanted] if log else []
        return [row for path in paths for table in self.files[f"{uri}/{path}"].rows for row in table.to_pylist()]


# --- files -----------------------------------------------------------------------------------------------------------


class SimHandler:
    """See ``deltalake.fs.DeltaStorageHandler``."""

    def __init__(self, table_uri: str, options: Any = None, known_sizes: Any = None) -> None:
        self.uri = table_uri

    def open_output_stream(self, path: str, metadata: Any = None) -> SimStream:
        return SimStream(self.uri, path)


class SimStream:
    """A new file, which is there when it is closed."""

    def __init__(self, uri: str, path: str) -> None:
        self._uri, self._path = uri, path
        self.file = File(_FILE_BYTES)
        Storage.of_run().ask(f"open {path}", lambda: None)

    def tell(self) -> int:
        return self.file.size

    def close(self) -> None:
        store = Storage.of_run()
        store.ask(f"put {self._path}", lambda: store.put(f"{self._uri}/{self._path}", self.file), writes=True)


class SimFileSystem:
    """See ``pyarrow.fs.PyFileSystem``."""

    def __init__(self, handler: SimHandler) -> None:
        self._uri = handler.uri

    def get_file_info(self, what: Any) -> Any:
        store = Storage.of_run()
        if isinstance(what, pafs.FileSelector):
            return store.ask(f"list {what.base_dir}", lambda: self._listing(what))
        if isinstance(what, str):
            return store.ask(f"look at {what}", lambda: self._found(what))
        return store.ask(f"look at {len(what)} files", lambda: [self._found(path) for path in what])

    def _listing(self, what: pafs.FileSelector) -> list[pafs.FileInfo]:
        """With what looks like folders, where only one level is asked for."""
        base, found = f"{self._uri}/{what.base_dir}".rstrip("/") + "/", dict[str, pafs.FileInfo]()
        for path, file in Storage.of_run().listed(base):
            short = path[len(self._uri) + 1 :]
            folder, deeper, _ = path[len(base) :].partition("/")
            if deeper and not what.recursive:
                short = f"{what.base_dir}/{folder}".lstrip("/")
                found[short] = pafs.FileInfo(short, type=pafs.FileType.Directory)
            else:
                found[short] = self._info(short, file)
        return list(found.values())

    def _found(self, path: str) -> pafs.FileInfo:
        file = Storage.of_run().files.get(f"{self._uri}/{path}")
        return pafs.FileInfo(path, type=pafs.FileType.NotFound) if file is None else self._info(path, file)

    @staticmethod
    def _info(path: str, file: File) -> pafs.FileInfo:
        return pafs.FileInfo(path, type=pafs.FileType.File, size=file.size, mtime_ns=int(file.written * 1e9))

    def open_input_file(self, path: str) -> SimInput:
        return SimInput(Storage.of_run(), self._uri, path)

    def delete_file(self, path: str) -> None:
        store = Storage.of_run()
        store.ask(f"delete {path}", lambda: store.files.pop(f"{self._uri}/{path}", None))


class SimInput:
    """An open file."""

    def __init__(self, store: Storage, uri: str, path: str) -> None:
        found = store.ask(f"read {path}", lambda: store.files.get(f"{uri}/{path}"))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, path)
        self.file = found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class SimParquetWriter:
    """See ``pyarrow.parquet.ParquetWriter``."""

    def __init__(self, where: SimStream, schema: pa.Schema, **_: Any) -> None:
        self._file, self._schema, self.is_open = where.file, schema, True

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        assert table.schema.equals(self._schema), "rows of another schema"
        self._file.rows.append(table)
        self._file.size += _ROW_BYTES * table.num_rows

    def add_key_value_metadata(self, about: Mapping[str, str]) -> None:
        self._file.about.update({name.encode(): text.encode() for name, text in about.items()})

    def close(self) -> None:
        self.is_open = False


class SimParquetFile:
    """See ``pyarrow.parquet.ParquetFile``."""

    def __init__(self, source: SimInput) -> None:
        if not source.file.whole:
            raise pa.ArrowInvalid("Parquet magic bytes not found in footer")
        self.metadata = SimpleNamespace(metadata=source.file.about)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
