"""The frame at the end of what was received, of which more will come. Pure."""

from __future__ import annotations

from .parser import lacking


class PartialFrame:
    """Its bytes are joined once, when it may be complete, not with each read."""

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []
        self._had = self._needed = 0

    def __len__(self) -> int:
        return self._had

    def keep(self, data: bytes, at: int) -> None:
        """What begins there is not complete; at the end of ``data``: there is no such frame."""
        self._pieces = [data[at:]] if at < len(data) else []
        self._had = len(data) - at
        self._needed = self._had + lacking(data, at) if self._had else 0

    def add(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Add what it lacks, and no more: what follows is not copied. All of it, if it may be complete now; and the
        offset of what was not added."""
        size = self._needed - self._had
        if size == 1:  # or it is not known yet: its first line
            line_end = data.find(b"\n", at)
            size = len(data) - at if line_end < 0 else line_end + 1 - at
        size = min(size, len(data) - at)
        self._pieces.append(memoryview(data)[at : at + size])
        self._had += size
        return b"".join(self._pieces) if self._had >= self._needed else None, at + size
