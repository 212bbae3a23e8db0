"""The format ``mamadiscovery``: sources and events as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .data_source import ChangesReader, ImageReader, changes_reader, image_reader, position_of

__all__ = ["ChangesReader", "ImageReader", "changes_reader", "image_reader", "position_of"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "ChangesReader": "data_source",
            "ImageReader": "data_source",
            "changes_reader": "data_source",
            "image_reader": "data_source",
            "position_of": "data_source",
        },
    )
