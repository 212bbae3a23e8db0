"""Records of Tango events, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from mama_spark.tango.log.records import RecordFrames, RecordHeads, RecordKind, encode


def encode_one(kind: RecordKind, received: int, frames: Sequence[bytes] = (), **numbers: int) -> bytes:
    """Encode one record.

    :param received: nanoseconds since the epoch
    :param frames: none, or up to four
    :param numbers: other fields of :class:`RecordHeads`
    """
    columns = ([frame] for frame in (*frames, *(b"",) * (4 - len(frames))))
    payload: bytes = encode(RecordHeads(kind, received, **numbers), RecordFrames(*columns))[0].as_py()
    return payload
