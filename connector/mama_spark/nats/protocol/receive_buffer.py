"""Memory that large messages are received into, and in which they stay until they become a column. Pure.

A message that several reads bring would otherwise be joined of them: a copy of each octet. Blocks are used again when
nobody has a part of them any more: to allocate memory, and to touch it for the first time, takes as long as to copy it.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

_BLOCK = 1024 * 1024
_LEAST = 64 * 1024  #: bytes that a read may bring, at least
_KEPT = 8  #: blocks that are kept for the next megabytes


class ReceiveBuffer:
    """What one connection has received and not parsed yet, side by side in :attr:`data`.

    It is larger than a block only where a message is: it grows with what came, never by an announced size.

    :ivar active: whether it is used; else what is received is parsed as it comes
    :ivar data: the block
    :ivar begin: offset of what is not parsed yet, ``end``: of what was not received yet
    :ivar needed: bytes from ``begin`` on before which there is nothing to parse
    :ivar shared: whether a part was shared since this was last set to False
    """

    def __init__(self) -> None:
        self.active = self.shared = False
        self._release()

    def __len__(self) -> int:
        return self.end - self.begin

    def start(self, data: memoryview, needed: int) -> None:
        """Use the buffer, from these bytes on, which were received and not parsed."""
        self.active, self.needed = True, needed
        self.append(data)

    def stop(self) -> bytes:
        """Do not use it any more, and give its memory back; returns what was not parsed."""
        rest = self.copy(len(self))
        self._release()
        self.active = self.shared = False
        return rest

    def _release(self) -> None:
        self.begin = self.end = self.needed = 0
        self._spare: deque[bytearray] = deque(maxlen=_KEPT)
        self._take(bytearray())

    def append(self, data: bytes | memoryview) -> None:
        """Bytes that were received elsewhere."""
        while len(data):
            space = self.free_space()
            n = min(len(space), len(data))
            space[:n] = data[:n]
            self.end, data = self.end + n, data[n:]

    def free_space(self) -> memoryview:
        """Memory for the next bytes, at least 64 KiB; to be followed by adding their number to :attr:`end`."""
        if self.begin == self.end and not self._lent:
            self.begin = self.end = 0
        free, lacking = len(self.data) - self.end, self.needed - len(self)
        early = free < lacking and self.needed <= _BLOCK  # now there is little to move
        if free < _LEAST or early:
            unparsed = self._memory[self.begin : self.end]
            large = 2 * len(unparsed) + _LEAST > _BLOCK
            self._take(bytearray(2 * len(unparsed) + _LEAST) if large else self._block())
            self._memory[: len(unparsed)] = unparsed
            self.begin, self.end = 0, len(unparsed)
        return self._memory[self.end :]

    def share(self, begin: int, end: int) -> memoryview:
        """A part of :attr:`data`, which is not written again while somebody has it."""
        self.shared = self._lent = True
        return self._memory[begin:end]

    def copy(self, most: int) -> bytes:
        """Up to ``most`` bytes of what is not parsed."""
        return bytes(self._memory[self.begin : min(self.end, self.begin + most)])

    def _block(self) -> bytearray:
        try:
            return self._spare.popleft()
        except IndexError:
            return bytearray(_BLOCK)

    def _take(self, block: bytearray) -> None:
        lease = np.frombuffer(block, np.uint8) if block else np.empty(0, np.uint8)  # lives as long as any view of it
        self.data, self._memory, self._lent = block, lease.data, False
        if len(block) == _BLOCK:
            weakref.finalize(lease, self._spare.append, block).atexit = False
