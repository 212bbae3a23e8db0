"""Packs several rows into one message and unpacks them. Pure; ``docs/reference/packed-messages.md`` has the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .chunked_unpack import unpack_chunks
    from .codec import ArrowCodec, Codec, codec_of
    from .compression import PackCompressor
    from .decompress import decompressed
    from .format import HEADER_BYTES, PACK, PACK_HEADERS, PACK_ROWS
    from .json_text import as_json_column, json_rows, with_number_names
    from .pack_headers import announced_rows, rows_of_messages
    from .packer import Packed, Packer, Rows, packed
    from .schema_cast import SchemaCast
    from .split import halves, singles
    from .unpacked import TypedRun, Unpacked
    from .unpacker import unpack, unpacked_as_is

__all__ = [
    "HEADER_BYTES",
    "PACK",
    "PACK_HEADERS",
    "PACK_ROWS",
    "ArrowCodec",
    "Codec",
    "PackCompressor",
    "Packed",
    "Packer",
    "Rows",
    "SchemaCast",
    "TypedRun",
    "Unpacked",
    "announced_rows",
    "as_json_column",
    "codec_of",
    "decompressed",
    "halves",
    "json_rows",
    "packed",
    "rows_of_messages",
    "singles",
    "unpack",
    "unpack_chunks",
    "unpacked_as_is",
    "with_number_names",
]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "ArrowCodec": "codec",
            "Codec": "codec",
            "HEADER_BYTES": "format",
            "PACK": "format",
            "PACK_HEADERS": "format",
            "PACK_ROWS": "format",
            "PackCompressor": "compression",
            "Packed": "packer",
            "Packer": "packer",
            "Rows": "packer",
            "SchemaCast": "schema_cast",
            "TypedRun": "unpacked",
            "Unpacked": "unpacked",
            "announced_rows": "pack_headers",
            "as_json_column": "json_text",
            "codec_of": "codec",
            "decompressed": "decompress",
            "halves": "split",
            "json_rows": "json_text",
            "packed": "packer",
            "rows_of_messages": "pack_headers",
            "unpack_chunks": "chunked_unpack",
            "singles": "split",
            "unpack": "unpacker",
            "unpacked_as_is": "unpacker",
            "with_number_names": "json_text",
        },
    )
