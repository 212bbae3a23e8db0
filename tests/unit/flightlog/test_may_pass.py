"""Whether an error of a file system may pass is decided in one place, for folders and for tables."""

from __future__ import annotations

import errno
import os

import pytest
from mama_spark.errors import FlightLogError, MamaError, Unavailable
from mama_spark.flightlog import folder
from mama_spark.flightlog.storage import storage_errors

ERRORS: list[tuple[int, type[MamaError]]] = [
    (errno.ESTALE, Unavailable),
    (errno.ENOSPC, Unavailable),
    (errno.EDQUOT, Unavailable),
    (errno.EIO, Unavailable),
    (errno.ETIMEDOUT, Unavailable),
    (errno.EACCES, FlightLogError),
    (errno.EROFS, FlightLogError),
    (errno.ENOTDIR, FlightLogError),
    (errno.ENAMETOOLONG, FlightLogError),
]


@pytest.mark.parametrize(("number", "expected"), ERRORS, ids=[errno.errorcode[number] for number, _ in ERRORS])
def test_folders_and_tables_agree(monkeypatch: pytest.MonkeyPatch, number: int, expected: type[MamaError]) -> None:
    error = OSError(number, os.strerror(number))

    def refuse(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(expected):
        folder.make_folder("/somewhere")
    with pytest.raises(expected), storage_errors("reading", {}):
        raise error
