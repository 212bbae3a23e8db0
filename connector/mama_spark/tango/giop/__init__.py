"""The parts of CORBA that Tango uses: CDR, GIOP messages, object references and TypeCodes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .assembler import MessageAssembler
    from .messages import (
        CancelRequest,
        CloseConnection,
        Context,
        GiopMessage,
        GiopReply,
        GiopRequest,
        LocateReply,
        LocateRequest,
        LocateStatus,
        MessageError,
        MessageType,
        ReplyStatus,
        decode,
        encode,
    )

__all__ = [
    "CancelRequest",
    "CloseConnection",
    "Context",
    "GiopMessage",
    "GiopReply",
    "GiopRequest",
    "LocateReply",
    "LocateRequest",
    "LocateStatus",
    "MessageAssembler",
    "MessageError",
    "MessageType",
    "ReplyStatus",
    "decode",
    "encode",
]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "CancelRequest": "messages",
            "CloseConnection": "messages",
            "Context": "messages",
            "GiopMessage": "messages",
            "GiopReply": "messages",
            "GiopRequest": "messages",
            "LocateReply": "messages",
            "LocateRequest": "messages",
            "LocateStatus": "messages",
            "MessageAssembler": "assembler",
            "MessageError": "messages",
            "MessageType": "messages",
            "ReplyStatus": "messages",
            "decode": "messages",
            "encode": "messages",
        },
    )
