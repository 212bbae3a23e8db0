"""Several rows in one message: how they are packed and unpacked. Pure; ``docs/packing.md`` has the format."""

from __future__ import annotations

from .again import halves, singles
from .as_text import check_text
from .bounded import portions
from .codec import ArrowCodec, Codec, LinesCodec, codec_of
from .fitting import Fitting
from .form import HEADER_BYTES, PACK, PACK_ROWS, Form, check_types
from .packer import Packed, Packer, Rows, packed
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
