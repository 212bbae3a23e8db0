"""Tango event source: a device server in Python whose attributes send events to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .device import Attribute, Criteria, Device
    from .event_source import TangoEventSource

__all__ = ["Attribute", "Criteria", "Device", "TangoEventSource"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__, {"TangoEventSource": "event_source", "Attribute": "device", "Criteria": "device", "Device": "device"}
    )
