"""Tango recorder: subscribes to devices and writes their events into a record log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .recorder import Recorder
    from .settings import RecorderSettings

__all__ = ["Recorder", "RecorderSettings"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"Recorder": "recorder", "RecorderSettings": "settings"})
