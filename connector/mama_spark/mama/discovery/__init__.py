"""OpenMAMA's source discovery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .discovery import DiscoveryLoop, SourceDiscovery, SourceDiscoveryCallbacks, Sources

__all__ = ["DiscoveryLoop", "SourceDiscovery", "SourceDiscoveryCallbacks", "Sources"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "DiscoveryLoop": "discovery",
            "SourceDiscovery": "discovery",
            "SourceDiscoveryCallbacks": "discovery",
            "Sources": "discovery",
        },
    )
