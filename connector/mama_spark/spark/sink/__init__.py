"""The format ``mamapub``: publishes a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .data_source import MamaPubStreamWriter, MamaPubWriter, batch_writer, stream_writer

__all__ = ["MamaPubStreamWriter", "MamaPubWriter", "batch_writer", "stream_writer"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "MamaPubStreamWriter": "data_source",
            "MamaPubWriter": "data_source",
            "batch_writer": "data_source",
            "stream_writer": "data_source",
        },
    )
