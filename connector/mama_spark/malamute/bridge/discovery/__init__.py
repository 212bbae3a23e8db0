"""Source discovery in the event stream of a Malamute broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .bridge import MalamuteDiscovery

__all__ = ["MalamuteDiscovery"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"MalamuteDiscovery": "bridge"})
