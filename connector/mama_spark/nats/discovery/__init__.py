"""Source discovery in JetStream streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .bridge import NatsDiscovery

__all__ = ["NatsDiscovery"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"NatsDiscovery": "bridge"})
