"""Packs several rows into one message and unpacks them. Pure; ``docs/reference/packed-messages.md`` has the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .unpacker import unpack

__all__ = ["unpack"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"unpack": "unpacker"})
