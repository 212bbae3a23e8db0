"""Decodes events and heartbeats (RFC 12; EVENT_INFO: TG-11, TG-12) from their frames, and encodes them. Pure.

Events have four ZeroMQ frames, heartbeats three: topic, byte order, call info, data. Messages with another number of
frames are no events, and are dropped silently: with each heartbeat, servers send the frame ``I like beer``.

The topic determines type and IDL version of the data: with ``idl5_`` before the event AttributeValue_5 or
AttributeConfig_5; without it older versions, of which the right one is found by trying.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import methodcaller
from typing import Any, TypeVar

from mama_spark.contracts.errors import MamaError

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..idl import structs
from ..idl.values import read_errors, read_value, write_errors, write_value
from ..topics import IDL, SCHEME, BadEventTopic, Topic, read_topic
from ..types import AttributeConfig, AttributeValue, DataReady, DevError, EventType, InterfaceChange, PipeData

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
        version, ctr, size, nul, oid_bytes, flag = _USUAL[little].unpack(frame)
        if size == 1 and not nul and not oid_bytes and flag < 2:
            return CallInfo(ctr, flag == 1, version)
    reader = CdrReader(frame, little)
    version, ctr, method, oid = reader.long(), reader.ulong(), reader.string(), reader.octets()
    call = CallInfo(ctr, reader.boolean(), version, method, oid)
    reader.finish()
    return call


def write_call(call: CallInfo, little: bool) -> bytes:
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
        raise BadEvent(f"a byte order of {bytes(frame[:8]).hex() or 'no byte'}")
    return False


def split(frames: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Split the frames of consecutive whole messages into messages. A message begins with a topic, of several in a row
    with the last one: no other frame of an event looks like a topic, and a SUB socket receives no message without
    one."""
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


Data = AttributeValue | AttributeConfig | DataReady | InterfaceChange | PipeData


@dataclass(frozen=True, slots=True)
class Event:
    """One event with data of the type of its topic, or errors instead (``call_is_except``)."""

    topic: Topic
    call: CallInfo
    data: Data | None = None
    errors: tuple[DevError, ...] = ()
    little: bool = True


@dataclass(frozen=True, slots=True)
class Heartbeat:
    topic: Topic
    call: CallInfo
    little: bool = True


def decode(frames: Sequence[bytes]) -> Event | Heartbeat:
    """Decode the frames of an event or heartbeat.

    :raises BadEvent: there are neither three nor four frames, or one is invalid, or longer than its content
    """
    if len(frames) not in (3, 4):
        raise BadEvent(f"{len(frames)} frames")
    is_event = len(frames) == 4
    little = read_order(frames[1])
    try:
        topic, call = read_topic(frames[0]), read_call(frames[2], little)
        if is_event is (topic.event is None):
            raise BadEvent(f"{len(frames)} frames on {topic}")
        if not is_event:
            return Heartbeat(topic, call, little)
        if call.is_except:
            return Event(topic, call, None, read_except(frames[3], little), little)
        return Event(topic, call, read_data(topic, frames[3], little), (), little)
    except (CdrError, BadEventTopic) as error:
        raise BadEvent(str(error)) from error


def read_except(frame: bytes, little: bool) -> tuple[DevError, ...]:
    """Decode the fourth frame of an event with errors.

    :raises CdrError: it contains no errors
    """
    at = 2 * len(MAGIC) if frame.startswith(MAGIC, len(MAGIC)) else len(MAGIC)  # in events of pipes, twice
    return _read_all(frame, little, at, read_errors)


def read_data(topic: Topic, frame: bytes, little: bool) -> Data:
    """Decode the fourth frame of an event without errors.

    :raises CdrError: it contains no data of such an event
    """
    forms = _forms(topic)
    for form in forms[:-1]:
        try:
            return _read_all(frame, little, form.at, form.read)
        except CdrError:
            continue
    return _read_all(frame, little, forms[-1].at, forms[-1].read)


_T = TypeVar("_T")


def _read_all(frame: bytes, little: bool, at: int, read: Callable[[CdrReader], _T]) -> _T:
    if bytes(frame[:at]) != MAGIC * (at // len(MAGIC)):
        raise CdrError(f"data without {at} bytes of {MAGIC.hex()}")
    reader = CdrReader(frame, little, at, at)
    data = read(reader)
    reader.finish()
    return data


def encode(event: Event | Heartbeat) -> list[bytes]:
    """Encode an event or a heartbeat.

    :raises CdrError: a value does not fit its field, or the data are of another type
    """
    head = [event.topic.encode(), LITTLE if event.little else BIG, write_call(event.call, event.little)]
    if isinstance(event, Heartbeat):
        return head
    if event.call.is_except is (event.data is not None):
        raise CdrError(f"an event with {'errors' if event.call.is_except else 'data'} on {event.topic} without them")
    if event.data is None:
        return [*head, write_except(event.errors, event.little)]
    return [*head, write_data(event.topic, event.data, event.little)]


def write_except(errors: Sequence[DevError], little: bool = True) -> bytes:
    """Encode the fourth frame of an event with errors; its third frame must have the flag."""
    writer = CdrWriter(little, MAGIC, len(MAGIC))
    write_errors(writer, errors)
    return writer.getvalue()


def write_data(topic: Topic, data: Data, little: bool = True) -> bytes:
    """Encode the fourth frame of an event without errors, in the newest form that the topic allows.

    :raises CdrError: a value does not fit its field, or the data are of another type
    """
    form = _forms(topic)[0]
    if not isinstance(data, form.cls):
        raise CdrError(f"{type(data).__name__} on {topic}")
    writer = CdrWriter(little, MAGIC * (form.at // len(MAGIC)), form.at)
    form.write(writer, data)
    return writer.getvalue()


def heartbeat(topic: bytes, little: bool = True) -> list[bytes]:
    """Encode a heartbeat on a topic of :func:`~mama_spark.tango.topics.heartbeat_topics`."""
    return [topic, LITTLE if little else BIG, usual_call(0, False, little)]


@dataclass(frozen=True, slots=True)
class _Form:
    """Codec of one type and IDL version of data, and the offset where it begins."""

    cls: type[Data]
    read: Callable[[CdrReader], Data]
    write: Callable[[CdrWriter, Any], None]
    at: int = len(MAGIC)


def _value_form(idl: int) -> _Form:
    return _Form(AttributeValue, lambda r: read_value(r, idl), lambda w, value: write_value(w, value, idl))


_VALUE_5, _VALUE_4, _VALUE_3 = _value_form(5), _value_form(4), _value_form(3)
_CONFIG_5 = _Form(AttributeConfig, structs.CONFIG_5.read, structs.CONFIG_5.write)
_CONFIG_3 = _Form(AttributeConfig, structs.CONFIG_3.read, structs.CONFIG_3.write)
_OTHER = {
    EventType.DATA_READY: (_Form(DataReady, structs.DATA_READY.read, structs.DATA_READY.write),),
    EventType.INTERFACE_CHANGE: (_Form(InterfaceChange, structs.read_interface, structs.write_interface),),
    EventType.PIPE: (_Form(PipeData, structs.read_pipe, structs.write_pipe, 2 * len(MAGIC)),),
    EventType.ALARM: (_VALUE_5, _VALUE_4),
    EventType.QUALITY: (_VALUE_5, _VALUE_4, _VALUE_3),
}


def _forms(topic: Topic) -> tuple[_Form, ...]:
    """The forms that data on this topic may have, the most probable first.

    :raises CdrError: the topic of a heartbeat
    """
    if topic.event is None:
        raise CdrError(f"events of {topic} have no data")
    if topic.event is EventType.ATTR_CONF:
        return (_CONFIG_5,) if topic.idl == IDL else (_CONFIG_3,)
    if topic.event in _OTHER:
        return _OTHER[topic.event]
    return (_VALUE_5,) if topic.idl == IDL else (_VALUE_4, _VALUE_3)
