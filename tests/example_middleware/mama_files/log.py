"""Reads: the file is a record log, and the number of a line its sequence."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds, RecordLog, RecordLogBridge, Records
from mama_spark.contracts.topics import compile_filters
from mama_spark.options import TransportOptions

from .bridge import FileBridge, append, path_of

ROWS = 4096  #: of one batch


def log_bridge(o: TransportOptions, timeout: float) -> "FileLogs":
    return FileLogs(path_of(o.url))


class FileLogs(RecordLogBridge):
    """See :class:`mama_spark.contracts.record_log.RecordLogBridge`: one log, of the name of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        """Nothing stays open."""

    def names(self, topics: Sequence[str]) -> list[str]:
        return [self.path.name]

    def log(self, name: str) -> "FileLog":
        if name != self.path.name:
            raise ConfigError(f"{self.path} is no log {name!r}")
        return FileLog(self.path)

    def close(self) -> None: ...


class FileLog(RecordLog):
    """See :class:`mama_spark.contracts.record_log.RecordLog`. Nothing is ever removed from it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    def _lines(self) -> list[tuple[int, str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # no batch that is half written
            return [json.loads(line) for line in file]

    def bounds(self) -> Bounds:
        lines = self._lines()
        return Bounds(1, len(lines), str(self.path), lines[-1][0] if lines else None)

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        wanted = compile_filters(topics)
        numbered = enumerate(self._lines()[max(0, after) : max(0, up_to)], max(0, after) + 1)
        found = [(n, line) for n, line in numbered if not topics or wanted.fullmatch(line[1])]
        for start in range(0, len(found), ROWS):
            numbers, lines = zip(*found[start : start + ROWS], strict=True)
            times, names, payloads = zip(*lines, strict=True)
            yield Records(
                np.array(numbers, np.int64),
                np.array(times, np.int64),
                pa.array(names, pa.string()).dictionary_encode(),
                pa.array([payload.encode("latin-1") for payload in payloads], pa.binary()),
            )

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        return []

    def sequence_at(self, time: int) -> int:
        lines = self._lines()
        return next((n for n, (at, _, _) in enumerate(lines, 1) if at >= time), len(lines) + 1)

    def append(self, batch: MessageBatch) -> int:
        bad = FileBridge(self.path).prepare(batch).rejected
        append(self.path, batch.slice(0, bad[0][0] if bad else len(batch)))
        if bad:
            raise bad[0][1]
        return self.bounds().last

    def trim(self, before: int) -> None:
        raise ConfigError("a file is not trimmed")

    def warnings(self, topics: Sequence[str] = ()) -> list[str]:
        return []

    def require_topics(self, topics: Sequence[str]) -> None: ...
    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None: ...
