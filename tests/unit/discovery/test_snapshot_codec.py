"""Stored images of discovery: what is written is read again, and what is no image is refused."""

from __future__ import annotations

import sys
from types import FrameType

import pyarrow as pa
import pytest
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind
from mama_spark.discovery import snapshot_codec

EVENTS = [DiscoveryEvent(DiscoveryEventKind.IMAGE_END, at, "log", at) for at in range(1, 40)]


def test_parts_hold_all_events_in_order() -> None:
    parts = snapshot_codec.pack(EVENTS, 200)
    assert len(parts) > 1
    assert all(len(part) <= 200 for part in parts)
    assert snapshot_codec.unpack(parts) == EVENTS
    with pytest.raises(ValueError):  # noqa: PT011 pyarrow's own, whatever it says
        snapshot_codec.unpack(parts[:-1])


def test_some_of_the_events_are_read_without_making_the_others() -> None:
    """Readers with ``maxOffsetsPerTrigger`` come once for each portion."""
    parts, made = snapshot_codec.pack(EVENTS, 200), 0

    def count(frame: FrameType, what: str, _: object) -> None:
        nonlocal made
        made += what == "call" and frame.f_code is DiscoveryEvent.__init__.__code__

    sys.setprofile(count)
    try:
        found = snapshot_codec.unpack(parts, 10, 13)
    finally:
        sys.setprofile(None)
    assert (found, made) == (EVENTS[10:13], 3)
    assert snapshot_codec.unpack(parts, 36) == EVENTS[36:]
    assert snapshot_codec.unpack(parts, 36, 100) == EVENTS[36:]


def test_a_schema_without_a_batch_is_an_empty_image() -> None:
    (part,) = snapshot_codec.pack(EVENTS, 1 << 20)
    schema = pa.ipc.open_stream(part).schema.serialize()
    snapshot_codec._check_size(schema)


def test_a_message_that_is_no_record_batch_is_refused() -> None:
    (part,) = snapshot_codec.pack(EVENTS, 1 << 20)
    schema = pa.ipc.open_stream(part).schema.serialize().to_pybytes()
    with pytest.raises(ValueError, match="no record batch of an image"):
        snapshot_codec._check_size(pa.py_buffer(schema + schema))
