"""Several rows in one message: how they are packed and unpacked. Pure; ``docs/packing.md`` has the format."""

from __future__ import annotations

from .chunked_unpack import portions
from .codec import ArrowCodec, Codec, LinesCodec, codec_of
from .format import HEADER_BYTES, PACK, PACK_ROWS, PackFormat, check_types
from .json_size import check_json_size
from .packer import Packed, Packer, Rows, packed
from .schema_cast import SchemaCast
from .split import halves, singles
from .unpack import TypedRun, Unpacked, announced_rows, unpack, unpacked_as_is

__all__ = [
    "HEADER_BYTES",
    "PACK",
    "PACK_ROWS",
    "ArrowCodec",
    "Codec",
    "LinesCodec",
    "PackFormat",
    "Packed",
    "Packer",
    "Rows",
    "SchemaCast",
    "TypedRun",
    "Unpacked",
    "announced_rows",
    "check_json_size",
    "check_types",
    "codec_of",
    "halves",
    "packed",
    "portions",
    "singles",
    "unpack",
    "unpacked_as_is",
]
