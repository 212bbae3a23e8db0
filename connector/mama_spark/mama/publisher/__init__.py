"""OpenMAMA's publishers with callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .callbacks import PublisherCallbacks
    from .publisher import Publisher

__all__ = ["Publisher", "PublisherCallbacks"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"Publisher": "publisher", "PublisherCallbacks": "callbacks"})
