"""Tells on which kind of file system a folder is (Linux)."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

#: Those that several machines mount, as ``/proc`` names them. What FUSE mounts (``fuse.*``) may be one or not.
SHARED_FILE_SYSTEMS = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
     "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs")
)  # fmt: skip

_MOUNTS = "/proc/self/mountinfo"


def file_system(path: str, mounts: str = _MOUNTS) -> str | None:
    """Type of the file system that holds ``path``, or will when it is made: ``ext4``, ``nfs4``, ..; None = not known.

    :param mounts: file in the format of ``/proc/self/mountinfo``
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    real = PurePosixPath(os.path.realpath(path))
    kind, depth = None, -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = PurePosixPath(_unescaped(fields.split(" ")[4]))
        if real.is_relative_to(point) and len(point.parts) >= depth:  # a later mount hides an earlier one
            kind, depth = rest.split(" ")[0], len(point.parts)
    return kind


def _unescaped(text: str) -> str:
    for code, char in ("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"):
        text = text.replace(code, char)
    return text
