"""Locks a store for its one writer, without SQLite's memory for a connection."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

from mama_spark.contracts.errors import ConfigError

#: Locked by this process: the system's locks exclude others only, and end when it closes the file once.
_held: set[str] = set()
_guard = threading.Lock()


class StoreLock:
    """An exclusive lock on a file beside the store, which ends with the process. Readers need none.

    :raises ConfigError: another process, or another part of this one, has it
    """

    def __init__(self, path: Path) -> None:
        self._store = path
        self._name = os.path.realpath(f"{path}.lock")
        with _guard:
            if self._name in _held:
                raise ConfigError(f"the store {path} is open elsewhere")
            self._descriptor: int | None = self._locked()
            _held.add(self._name)

    def _locked(self) -> int:
        try:
            descriptor = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise ConfigError(f"the store {self._store} cannot be made: {e}") from e
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(descriptor)
            busy = isinstance(e, BlockingIOError | PermissionError)
            problem = "is open elsewhere" if busy else f"cannot be locked: {e}"
            raise ConfigError(f"the store {self._store} {problem}") from e
        return descriptor

    def close(self) -> None:
        """Idempotent."""
        with _guard:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                _held.discard(self._name)
                with suppress(OSError):
                    os.close(descriptor)
