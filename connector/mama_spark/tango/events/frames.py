"""ZeroMQ frames of events (four) and heartbeats (three): topic, byte order, call info, data. Pure.

Messages with another number of frames are no events, and are dropped silently: with each heartbeat, servers send the
frame ``I like beer``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import methodcaller

from mama_spark.contracts.errors import MamaError

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..topics import SCHEME

#: precedes the data, and is not counted for CDR alignment; twice before the data of a pipe
MAGIC = b"\xc0\xde\xc0\xde"
LITTLE, BIG = b"\1", b"\0"
VERSION = 1

#: Call info as all known servers send it: version, counter, an empty method name, no object id, the flag. The gaps are
#: padding of any content.
_USUAL = {True: struct.Struct("<iIIB3xIB"), False: struct.Struct(">iIIB3xIB")}
CALL_SIZE = _USUAL[True].size
_is_topic = methodcaller("startswith", SCHEME.encode())


class BadEvent(MamaError):
    """Frames that are neither an event nor a heartbeat: the receiver drops and counts them."""


@dataclass(frozen=True, slots=True)
class CallInfo:
    """ZmqCallInfo.

    :ivar ctr: counter of the event; without meaning in heartbeats
    :ivar is_except: the fourth frame contains errors
    :ivar version: 1, or any number: some senders put their ZeroMQ release there
    """

    ctr: int
    is_except: bool = False
    version: int = VERSION
    method: str = ""
    oid: bytes = b""


def read_call(frame: bytes, little: bool) -> CallInfo:
    """Decode the third frame.

    :raises CdrError: it is no call info, or too long
    """
    if len(frame) == CALL_SIZE:
        version, ctr, size, nul, octets, flag = _USUAL[little].unpack(frame)
        if size == 1 and not nul and not octets and flag < 2:
            return CallInfo(ctr, flag == 1, version)
    reader = CdrReader(frame, little)
    version, ctr, method, oid = reader.long(), reader.ulong(), reader.string(), reader.octets()
    call = CallInfo(ctr, reader.boolean(), version, method, oid)
    reader.finish()
    return call


def write_call(call: CallInfo, little: bool = True) -> bytes:
    """The inverse of :func:`read_call`."""
    writer = CdrWriter(little)
    writer.long(call.version)
    writer.ulong(call.ctr)
    writer.string(call.method)
    writer.octets(call.oid)
    writer.boolean(call.is_except)
    return writer.getvalue()


def usual_call(ctr: int, is_except: bool = False, little: bool = True) -> bytes:
    """:func:`write_call` of a usual call info, ten times as fast.

    :raises CdrError: the counter is no u32
    """
    try:
        return _USUAL[little].pack(VERSION, ctr, 1, 0, 0, is_except)
    except struct.error:
        raise CdrError(f"a counter of {ctr!r}") from None


def read_order(frame: bytes) -> bool:
    """Decode the second frame: True for little endian.

    :raises BadEvent: it is no byte order
    """
    if frame == LITTLE:
        return True
    if frame != BIG:
        raise BadEvent(f"a byte order of {bytes(frame[:8]).hex() or 'no octet'}")
    return False


def split(frames: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Split the frames of consecutive whole messages into messages.

    A message begins with a topic, of several in a row with the last one: no other frame of an event looks like a topic,
    and a SUB socket receives no message without one.
    """
    topics = list(map(_is_topic, frames))
    if topics == [True, False, False, False] * (len(frames) // 4):  # nothing but events
        return list(zip(*[iter(frames)] * 4, strict=True))
    messages: list[Sequence[bytes]] = []
    for topic, found in groupby(frames, _is_topic):
        if topic or not messages:
            messages.append(list(found))
            continue
        *others, last = messages.pop()
        if others:
            messages.append(others)
        messages.append([last, *found])
    return messages
