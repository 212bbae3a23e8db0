"""Identity of the write that rows of the flight log belong to."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriteId:
    """Identity of a batch write, or of one micro-batch of a streaming query.

    :ivar query_id: of a stream, else None
    :ivar run_id: of the batch write, or of this run of the stream
    :ivar batch_id: micro-batch, or ``txnVersion`` of a batch write; None without
    :ivar bridge: name of the bridge
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
    """``name`` as one component of a path; a hash is appended where characters had to be replaced."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    if clean == name and name[0] not in "_-":
        return name
    return f"r{clean[:64]}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
