"""Tango client: subscribes to events, and calls devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .device_proxy import DeviceProxy, open_device
    from .subscriber import TangoSubscriber
    from .subscription import EventSubMode, Subscription

__all__ = ["DeviceProxy", "EventSubMode", "Subscription", "TangoSubscriber", "open_device"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "TangoSubscriber": "subscriber",
            "EventSubMode": "subscription",
            "Subscription": "subscription",
            "DeviceProxy": "device_proxy",
            "open_device": "device_proxy",
        },
    )
