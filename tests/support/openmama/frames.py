"""Received frames in columns."""

from __future__ import annotations

from collections.abc import Iterable

from mama_spark.openmama.wire.frame_filter import FrameColumns, ReceivedFrame


def columns_of(frames: Iterable[ReceivedFrame]) -> FrameColumns:
    return FrameColumns.joined(
        [FrameColumns.of_one(f.raw, f.topic, f.payload_at, {} if f.inbox is None else {0: f.inbox}) for f in frames]
    )
