"""Tango events as ZeroMQ frames (RFC 12): codecs, batches, and the comparison of event counters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .event_codec import (
        Event,
        Heartbeat,
        decode,
        encode,
        heartbeat,
        read_data,
        read_except,
        write_data,
        write_except,
    )

__all__ = [
    "Event",
    "Heartbeat",
    "decode",
    "encode",
    "heartbeat",
    "read_data",
    "read_except",
    "write_data",
    "write_except",
]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "Event": "event_codec",
            "Heartbeat": "event_codec",
            "decode": "event_codec",
            "encode": "event_codec",
            "heartbeat": "event_codec",
            "read_data": "event_codec",
            "read_except": "event_codec",
            "write_data": "event_codec",
            "write_except": "event_codec",
        },
    )
