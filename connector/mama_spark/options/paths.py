"""Paths of tables: on a file system, relative or absolute, or URLs. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from ..contracts.redaction import redact_url
from .values import text

_URL = re.compile(r"file:|[A-Za-z][A-Za-z0-9+.-]*:/", re.IGNORECASE)


def table_path(value: str) -> str:
    found = text(value)
    if found.lower().startswith("file:"):
        parts = urlsplit(found)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError("must be an absolute path as a file: URL, such as file:///shared/flight_log")
    elif _holds_login(found):  # it would have no effect, and be shown
        raise ValueError(f"holds a login, in {redact_url(found)}: give it by options such as storage.aws_access_key_id")
    return found


def _holds_login(uri: str) -> bool:
    """Whether the URL holds a login, as neither the container of an ``abfss:`` URL nor an @ in the path is."""
    host, _, path = uri.partition("://")[2].partition("/")
    return ("@" in host or (":" in host and "@" in path)) and redact_url(uri) != uri


def absolute_path(path: str, folder: str) -> str:
    """``path``; a relative one below ``folder``. URLs stay as they are."""
    return path if path.startswith("/") or _URL.match(path) else str(PurePosixPath(folder, path))


def local_path(path: str) -> str | None:
    """The path on the file system; None = a URL of other storage."""
    if not _URL.match(path):
        return path
    return unquote(urlsplit(path).path) if path.lower().startswith("file:") else None


#: Parts of a folder's path that delta-rs misreads: escapes of URLs, which it decodes once too often, backslashes, which
#: become slashes, and control characters.
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")


def misread(path: str) -> str | None:
    """The first text in ``path`` that makes delta-rs look for a local folder elsewhere; None = there is none."""
    found = _MISREAD.search(local_path(path) or "")
    return None if found is None else found[0]


def is_inside(path: str, folder: str) -> bool:
    return _plain(path).is_relative_to(_plain(folder))


def _plain(path: str) -> PurePosixPath:
    local = local_path(path)
    return PurePosixPath(re.sub(r"/+", "/", path if local is None else local))
