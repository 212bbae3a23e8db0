"""The managed publisher: one call per message, with futures and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .managed_publisher import ManagedPublisher

__all__ = ["ManagedPublisher"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"ManagedPublisher": "managed_publisher"})
