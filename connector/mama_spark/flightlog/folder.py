"""The folder of a table on a file system: whether it may become a table, whether all processes see the same one, and
where the parts of a write are in it.

The driver puts a marker, an empty file, into the folder; its name goes to the tasks. A task that does not find it sees
another folder: the driver would commit parts that are not in its own. The marker stays for later writes. Its name
begins with ``_``, so that Delta's VACUUM and all readers leave it alone.

Spark plans each micro-batch in a new process, so this module imports neither Arrow nor delta-rs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from ..contracts.errors import FlightLogError, MamaError, Unavailable
from ..options.paths import local_path, misread

#: Folder of the parts in the table. Its name starts with neither ``_`` nor ``.``, so that VACUUM cleans it.
PARTS = "parts"
DELTA_LOG = "_delta_log"

SHARE_IT = "use a folder that the driver and all executors mount, or an object store such as s3://bucket/flight_log"

OTHER_FOLDER = "name a folder that this user may make and write"
_MARKER = "_mama_spark-"
#: Names allowed in a folder without a table; the last is in the root of some file systems.
_OWN = (PARTS, DELTA_LOG, "lost+found")
_FINAL = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EINVAL,
)  # fmt: skip


def mark_folder(uri: str, what: str) -> str | None:
    """Make the folder and its marker, where they are missing: on the driver, before the tasks.

    :param what: the option that names the table, for messages
    :returns: name of the marker; None for other storage than a file system, which all processes share
    :raises FlightLogError: no permission, no folder, or a folder with other files
    :raises Unavailable: what :func:`may_pass`, such as a full disk
    """
    path = local_path(uri)
    if path is None:
        return None
    require_readable_name(uri, what)
    make_folder(path, what)
    try:
        names = os.listdir(path)
        if DELTA_LOG not in names:
            require_free(names, uri, what)
        markers = sorted(name for name in names if name.startswith(_MARKER))
        if markers:
            return markers[0]
        marker = f"{_MARKER}{uuid.uuid4().hex}"
        with open(os.path.join(path, marker), "x"):
            return marker
    except OSError as e:
        raise _error(e, f"{what}: the driver cannot write in {path}: {e.strerror}; {OTHER_FOLDER}") from e


def require_readable_name(uri: str, what: str = "the table") -> None:
    """Check that delta-rs reads the path of the table as it is written.

    :raises FlightLogError: it would look for the folder elsewhere
    """
    text = misread(uri)
    if text is not None:
        raise FlightLogError(
            f"{what}: the path {uri!r} holds {text!r}, which the library for Delta tables reads as something else, so "
            "that it would write another folder: name a path without it"
        )


def require_marker(uri: str, marker: str | None, what: str) -> None:
    """Check in a task, before it writes, that it sees the folder that the driver has marked; else FlightLogError."""
    path = local_path(uri)
    if path is None or marker is None or os.path.exists(os.path.join(path, marker)):
        return
    raise FlightLogError(
        f"{what} {uri}: the executor on {os.uname().nodename} does not see the folder of this name that the driver has "
        f"made, so nothing was published: {SHARE_IT}"
    )


def make_folder(path: str, what: str = "the table") -> None:
    """Make a folder, unless it exists.

    :raises FlightLogError: it cannot be made
    :raises Unavailable: what :func:`may_pass`, such as a full disk
    """
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError as e:
        raise FlightLogError(f"{what}: {path} is a file, not the folder of a table; {OTHER_FOLDER}") from e
    except FileNotFoundError as e:  # of a file system that takes no folders, such as /proc
        raise FlightLogError(f"{what}: {path} cannot be made: {e.strerror}; {OTHER_FOLDER}") from e
    except OSError as e:
        raise _error(e, f"{what}: {path} cannot be made: {e.strerror}; {OTHER_FOLDER}") from e


def require_free(names: Iterable[str], uri: str, what: str) -> None:
    """Check that a folder without a table holds nothing but what this package has put there.

    :raises FlightLogError: it holds other files
    """
    others = sorted(n for n in names if n and n not in _OWN and not n.startswith((".", _MARKER)))
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise FlightLogError(
            f"{what} {uri} is no Delta table, and its folder holds other files ({shown}): name a folder that is empty "
            "or does not exist yet"
        )


def may_pass(e: OSError) -> bool:
    """Whether a later try may succeed: after a full or broken disk, or with the file server away. Never without
    permission, at an impossible path, or with a file in place of a folder."""
    return e.errno not in _FINAL


def _error(e: OSError, text: str) -> MamaError:
    return (Unavailable if may_pass(e) else FlightLogError)(text)


@dataclass(frozen=True, slots=True)
class WriteId:
    """Identity of a batch write, or of one micro-batch of a streaming query.

    :ivar query_id: id of the streaming query, else None
    :ivar run_id: id of the batch write, or of this run of the stream
    :ivar batch_id: micro-batch, or ``txnVersion`` of a batch write; None without
    :ivar commit: number of the commit, where a write without micro-batches has several
    """

    query_id: str | None
    run_id: str
    batch_id: int | None
    bridge: str
    commit: int = 0

    @property
    def prefix(self) -> str:
        """Folder of the parts, below ``parts/``: ``<query or run>/<batch or commit>``; attempts at a batch share it."""
        return f"{_safe(self.query_id or self.run_id)}/{self.commit if self.batch_id is None else self.batch_id}"


def _safe(name: str) -> str:
    """``name`` as one component of a path, with a hash where characters had to be replaced."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    if clean == name and name[0] not in "_-":
        return name
    return f"r{clean[:64]}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
