"""Several rows in one message: how they are packed and unpacked. Pure; ``docs/packing.md`` has the format."""

from __future__ import annotations

from .chunked_unpack import portions
from .codec import ArrowCodec, Codec, LinesCodec, codec_of
from .format import HEADER_BYTES, PACK, PACK_ROWS, Form, check_types
from .json_size import check_text
from .packer import Packed, Packer, Rows, packed
from .schema_cast import Fitting
from .split import halves, singles
from .unpack import TypedRun, Unpacked, announced_rows, unpack, untouched

__all__ = [
    "HEADER_BYTES",
    "PACK",
    "PACK_ROWS",
    "ArrowCodec",
    "Codec",
    "Fitting",
    "Form",
    "LinesCodec",
    "Packed",
    "Packer",
    "Rows",
    "TypedRun",
    "Unpacked",
    "announced_rows",
    "check_text",
    "check_types",
    "codec_of",
    "halves",
    "packed",
    "portions",
    "singles",
    "unpack",
    "untouched",
]
