"""Tango events in ZeroMQ frames (RFC 12). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.moved_names import lazy

if TYPE_CHECKING:
    from .events import Event, Heartbeat, decode, encode, heartbeat, read_data, read_except, write_data, write_except

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
            "Event": "events",
            "Heartbeat": "events",
            "decode": "events",
            "encode": "events",
            "heartbeat": "events",
            "read_data": "events",
            "read_except": "events",
            "write_data": "events",
            "write_except": "events",
        },
    )
