"""Frames of a NATS server from reads that are cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from mama_spark.nats.protocol.parser import Frame, read_frame


class FrameParser:
    """Collects reads, cut anywhere, and yields complete frames."""

    def __init__(self) -> None:
        self._data = b""

    def receive(self, data: bytes) -> Iterator[Frame]:
        """:raises ProtocolError: while iterating"""
        buffer = self._data + data if self._data else data
        at = 0
        try:
            while at < len(buffer):
                frame = read_frame(buffer, at)
                if frame is None:
                    return
                at = frame.end
                yield frame
        finally:
            self._data = buffer[at:]
