"""The format ``mamasub``: messages of topics as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .data_source import LogPartition, MamaSubReader, MamaSubStreamReader, batch_reader, schema_for, stream_reader

__all__ = ["LogPartition", "MamaSubReader", "MamaSubStreamReader", "batch_reader", "schema_for", "stream_reader"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "LogPartition": "data_source",
            "MamaSubReader": "data_source",
            "MamaSubStreamReader": "data_source",
            "batch_reader": "data_source",
            "schema_for": "data_source",
            "stream_reader": "data_source",
        },
    )
