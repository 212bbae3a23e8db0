"""What comes from outside is a value or the parser's own error, whatever its bytes.

One row for each parser that has no such test beside its others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError, MamaError, PublishError, Unavailable
from mama_spark.discovery import image_codec
from mama_spark.malamute.broker.engines.jetstream import message_codec
from mama_spark.malamute.protocol import log_query
from mama_spark.malamute.protocol.commands import BadFrame
from mama_spark.mama.messages import event_records, omnm, source_records
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.mama.messages.source_records import BadSourceRecord
from mama_spark.nats.discovery.layout import BadSubject, DiscoveryLayout
from mama_spark.nats.discovery.offsets import parse_offset
from mama_spark.nats.jetstream.answers import answer_of
from mama_spark.nats.protocol import acks, direct_get, fast_batch, parser, records
from mama_spark.packing.format import BadPack
from mama_spark.packing.ipc import read_pack
from mama_spark.spark.subscribe.offsets import from_json
from mama_spark.tango.errors import BadReply
from mama_spark.tango.events import event_codec
from mama_spark.tango.events.event_codec import BadEvent
from mama_spark.tango.giop import ior, typecode
from mama_spark.tango.giop.cdr import CdrError, CdrReader
from mama_spark.tango.giop.ior import BadAddress
from mama_spark.tango.idl import calls, negotiation, structs, values
from mama_spark.tango.log import records as tango_records
from mama_spark.tango.log.records import BadEventRecord

from tests.support.nats.frame_parser import FrameParser
from tests.support.tiers import examples

Parse = Callable[[bytes], object]
MAMA_ERRORS = (BadMessage, BadSourceRecord)
INBOX = b"_INBOX.abc."


def text_of(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def bulk(data: bytes) -> list[acks.AckColumns]:
    """Every number that is taken fits into its column."""
    found: list[acks.AckColumns] = []
    acks.BulkReader(INBOX).read(data, 0, found)
    return found


def frame_replies(data: bytes) -> list[object]:
    return [acks.classify(frame) for frame in FrameParser().receive(data)]


def batch_reply(data: bytes) -> object:
    """An answer to a batch of three messages, or none."""
    batch = fast_batch.FastBatch("abc", 10)
    batch.add(np.arange(3))
    named = fast_batch.parse_reply(data, INBOX)
    reply = acks.read_reply(data) if named is None else acks.FlowAck(named[1], 1)
    return batch.reply(reply, 1 if named is None else named[1])


def stored_message(data: bytes) -> object:
    found = direct_get.stored(direct_get.headers_of(data), b"")
    return None if found is None else (found.at, found.sourced)


def jetstream_message(data: bytes) -> object:
    subject, _, block = data.partition(b" ")
    lines = [(name, value) for name, values in records.read_block(block) for value in values]
    return message_codec.decode(subject.decode(errors="backslashreplace"), b"payload", lines)


def cdr(read: Callable[[CdrReader], object]) -> Parse:
    """Both byte orders, by the first byte."""
    return lambda data: read(CdrReader(data[1:], bool(data[:1] > b"\x7f")))


def event(data: bytes) -> object:
    return event_codec.decode([b"tango://h:1/a/b/c/d.change", b"\x01", data[:16], data[16:]])


def tango_errors(data: bytes) -> object:
    found = tango_records.decode(pa.array([data], pa.binary()))
    return tango_records.errors_of(found, 0)


def json_or_none(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return {"ORDERS": text_of(data)}


NATS: dict[str, tuple[Parse, tuple[type[Exception], ...], bytes]] = {
    "acknowledgements in bulk": (bulk, (), b"MSG _INBOX.abc.000000000001 1 "),
    "frames and their replies": (frame_replies, (parser.ProtocolError,), b"HMSG _INBOX.abc.1 1 12 16\r\nNATS/1.0 "),
    "a reply": (acks.read_reply, (acks.AckError,), b'{"stream":"S","seq":'),
    "replies to a batch": (batch_reply, (acks.AckError,), b"_INBOX.abc.abc.10.fail."),
    "a stored message": (stored_message, (), b"NATS/1.0\r\nNats-Sequence: 1\r\nNats-Stream-Source: S "),
    "a time": (lambda o: direct_get.micros(text_of(o)), (), b"2026-01-31T12:00:00"),
    "a header block": (lambda o: records.header_column([o, None, o * 300], 3), (), b"NATS/1.0\r\nA: b\r\n"),
    "an answer of the API": (answer_of, (Unavailable,), b'{"error":'),
    "a subject of discovery": (
        lambda o: DiscoveryLayout("_MAMA").source_of(text_of(o)), (BadSubject,), b"_MAMA.source.",
    ),
    "a position of discovery": (lambda o: parse_offset(json_or_none(o)), (ConfigError,), b'{"mark": '),
    "offsets of mamasub": (lambda o: from_json(json_or_none(o)), (ConfigError,), b'{"S": {"next": '),
    "an image of discovery": (lambda o: image_codec.unpack([o]), (ValueError,), b"\xff\xff\xff\xff"),
    "a message of the JetStream engine": (jetstream_message, (message_codec.Unreadable,), b"a.b NATS/1.0\r\nMlp-"),
}  # fmt: skip
OTHERS: dict[str, tuple[Parse, tuple[type[Exception], ...], bytes]] = {
    "numbers of a log query": (lambda o: log_query.parse_numbers(o, 3), (BadFrame,), b"\0"),
    "texts of a log query": (log_query.parse_texts, (BadFrame,), b"\0\0\0\1"),
    "an event of MAMA": (lambda o: event_records.decode_event(omnm.decode(o)), MAMA_ERRORS, b"O\1\0"),
    "a source of MAMA": (lambda o: source_records.decode_source(omnm.decode(o)), MAMA_ERRORS, b"O\1\0"),
    "an arrow pack": (lambda o: read_pack(pa.py_buffer(o), 1), (BadPack,), b"\xff\xff\xff\xff"),
    "a typecode": (cdr(typecode.read_typecode), (CdrError,), b"\0"),
    "an any": (cdr(typecode.read_any), (CdrError,), b"\0"),
    "an any of an attribute": (cdr(values.read_any), (CdrError,), b"\0"),
    "a union": (cdr(values.read_union), (CdrError,), b"\0"),
    "an attribute value": (cdr(values.read_value), (CdrError,), b"\0"),
    "an attribute value of IDL 3": (cdr(partial(values.read_value, idl=3)), (CdrError,), b"\0"),
    "errors": (cdr(values.read_errors), (CdrError,), b"\0\0\0\0\1"),
    "values": (cdr(calls.read_values), (CdrError,), b"\0\0\0\0\1"),
    "a device's info": (cdr(calls.INFO_3.read), (CdrError,), b"\0"),
    "a client": (cdr(calls.read_client), (CdrError,), b"\0"),
    "a command": (cdr(lambda r: calls.read_command(r, calls.Operation.COMMAND_4)), (CdrError,), b"\0\0\0\0\1\0"),
    "a reading": (cdr(lambda r: calls.read_reading(r, calls.Operation.READ_5)), (CdrError,), b"\0"),
    "commands of a device": (cdr(structs.COMMAND_INFO.read_all), (CdrError,), b"\0"),
    "an interface": (cdr(structs.read_interface), (CdrError,), b"\0"),
    "a pipe": (cdr(structs.read_pipe), (CdrError,), b"\0"),
    "a reference": (cdr(ior.read_reference), (CdrError,), b"\0"),
    "an event of Tango": (event, (BadEvent,), b"\0" * 16),
    "a call of an event": (lambda o: event_codec.read_call(o, True), (CdrError,), b"\0"),
    "an IOR": (lambda o: ior.parse_ior(text_of(o)), (BadAddress,), b"IOR:01"),
    "a Tango host": (lambda o: ior.parse_tango_host(text_of(o)), (BadAddress,), b"host:"),
    "a device": (lambda o: ior.parse_device(text_of(o), "h:1"), (BadAddress,), b"tango://h:1/"),
    "a topic of records": (lambda o: tango_records.parse_record_topic(text_of(o)), (BadEventRecord,), b"tango.x."),
    "errors of a record": (tango_errors, (BadEventRecord,), b""),
    "a subscription": (
        lambda o: negotiation.SubscriptionInfo.parse([1033, 5, 100], text_of(o).split(",")), (BadReply,), b"tcp://h:1,",
    ),
}  # fmt: skip
PARSERS = {**NATS, **OTHERS}


@pytest.mark.parametrize("name", PARSERS)
@examples(150)
@given(data=st.binary(max_size=150), kept=st.integers(0, 60))
@example(data=b"9" * 5000, kept=60)
@example(data=b"\xc2\xb2\xe0\xa5\xa7", kept=60)
@example(data=b"[" * 3000, kept=0)
@example(data=b"9" * 5000 + b"\r\n{}\r\n", kept=60)
@example(data=b"1." + b"9" * 5000 + b"@h/x", kept=14)
@example(data=b"h:" + b"9" * 5000 + b"/a/b/c", kept=60)
@example(data=b"\x00/\x80", kept=14)
def test_any_bytes_are_a_value_or_the_parsers_own_error(name: str, data: bytes, kept: int) -> None:
    parse, errors, start = PARSERS[name]
    assert all(issubclass(error, (MamaError, ValueError, BadPack, message_codec.Unreadable)) for error in errors)
    with contextlib.suppress(*errors):
        parse(start[:kept] + data)


@examples(300)
@given(
    st.one_of(st.binary(max_size=8), st.text(max_size=4).map(str.encode)),
    st.integers(0, 2**64 - 1),
    st.sampled_from([b"", b',"duplicate": true', b',"duplicate":true', b',"x":1']),
)
@example(b"\xff", 1, b"")
@example(b"\r\n", 1, b"")
def test_an_acknowledgement_in_bulk_is_what_it_is_alone(stream: bytes, seq: int, more: bytes) -> None:
    """The stream may have any name: an acknowledgement that cannot be read alone is not taken in bulk either."""
    body = b'{"stream":"%b","seq":%d%b}' % (stream, seq, more)
    data = b"MSG %b%012d 1 %d\r\n%b\r\n" % (INBOX, 7, len(body), body)
    found = bulk(data * 3)
    alone = acks.classify(parser.Frame("MSG", 0, payload=body))
    if not found:
        return
    assert isinstance(alone, acks.PubAck)
    (columns,) = found
    assert (columns.stream, columns.domain) == (alone.stream, alone.domain)
    assert [t for part in columns.tokens for t in part.tolist()] == [7] * 3
    assert [s for part in columns.sequences for s in part.tolist()] == [alone.sequence] * 3
    assert [d for part in columns.duplicates for d in part.tolist()] == [alone.duplicate] * 3


@pytest.mark.parametrize("body", [b'{"stream":"S","seq":18446744073709551615}', b'{"type":"ack","seq":-1,"msgs":1}'])
def test_a_number_that_no_column_holds_is_no_acknowledgement(body: bytes) -> None:
    found = acks.classify(parser.Frame("MSG", 0, payload=body))
    assert isinstance(found, PublishError)
    assert "unreadable acknowledgement" in found.info
