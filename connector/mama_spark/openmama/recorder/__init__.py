"""OpenMAMA recorder: subscribes to topics and symbols, and writes their messages into a record log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .recorder import OpenMamaRecorder
    from .settings import OpenMamaRecorderSettings

__all__ = ["OpenMamaRecorder", "OpenMamaRecorderSettings"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"OpenMamaRecorder": "recorder", "OpenMamaRecorderSettings": "settings"})
