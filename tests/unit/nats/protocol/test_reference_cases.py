"""The cases by which the servers' and the Go client's own tests describe the protocol, as far as a client meets them.

From nats-server (``test/{proto,ping,maxpayload,verbose,tls}_test.go``, the ``sendErr`` calls of ``server/*.go``) and
nats.go (``nats_test.go``: ``TestParser*``, ``TestNormalizeError``, ``TestAsyncINFO``, ``TestHeaderParser``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from mama_spark.nats.protocol.client import State
from mama_spark.nats.protocol.client_events import Cause, Complaint, Lost
from mama_spark.nats.protocol.parser import Frame, ProtocolError, read_frame

from tests.support.nats.client_protocol import kinds, made
from tests.support.tables import each


@each(
    "data",
    [
        *(b" PING\r\n", b"POO\r\n", b"Px\r\n", b"PIx\r\n", b"PINx\r\n", b"POx\r\n", b"PONx\r\n", b"ZOO\r\n"),
        *(b"Mx\r\n", b"MSx\r\n", b"MSGx\r\n", b"MSG  foo\r\n", b"MSG \r\n", b"MSG foo 1\r\n", b"MSG foo bar 1 baz\r\n"),
        *(b"MSG foo 1 bar baz\r\n", b"MSG a\r\n", b"MSG a b c\r\n", b"MSG a 1 1\r\nxy", b"+x\r\n", b"+Ox\r\n"),
        *(b"-x\r\n", b"-Ex\r\n", b"-ERx\r\n", b"-ERRx\r\n"),
        *(b"IxNFO {}\r\n", b"INxFO {}\r\n", b"INFxO {}\r\n", b"INFOx {}\r\n", b"INFO{}\r\n"),
    ],
)  # fmt: skip
def test_what_the_go_client_refuses_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_frame(data)


@each(
    "data,op,text",
    [
        (b"PING\r\n", "PING", ""), (b"PING  \r\n", "PING", ""), (b"PONG\r\n", "PONG", ""), (b"+OK\r\n", "+OK", ""),
        (b"-ERR  'Any kind of error'\r\n", "-ERR", "Any kind of error"),
        (b"-ERR    'Trim Surrounding Spaces'   \r\n", "-ERR", "Trim Surrounding Spaces"),
        *((line, "INFO", "") for line in (
            b"INFO {}\r\n", b"INFO  {}\r\n", b"INFO {} \r\n", b'INFO { "server_id": "test"  }   \r\n',
            b'INFO {"connect_urls":[]}\r\n',
        )),
    ],
)  # fmt: skip
def test_what_the_go_client_takes_is_taken_however_it_is_cut(data: bytes, op: str, text: str) -> None:
    assert all(read_frame(data[:end]) is None for end in range(len(data)))
    frame = read_frame(data)
    assert isinstance(frame, Frame)
    assert (frame.op, frame.text, frame.end) == (op, text, len(data))


@each("block", [b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.0\r\nk1:v1", b"NATS/1.0\r\nk1:v1\r\n"])
def test_a_header_block_that_the_go_client_cannot_read_does_not_cost_the_message(block: bytes) -> None:
    """It passes the message on, too, and reports the headers."""
    frame = read_frame(b"HMSG a 1 %d %d\r\n%b!\r\n" % (len(block), len(block) + 1, block))
    assert frame is not None
    assert (frame.status, frame.payload) == (0, b"!")


@each(
    "line,status,text",
    [
        (b"NATS/1.0 503", 503, ""), (b"NATS/1.0 503 No Responders", 503, "No Responders"),
        (b"NATS/1.0  404   No Messages", 404, "No Messages"),
    ],
)  # fmt: skip
def test_a_status_stands_in_the_first_line_of_the_headers(line: bytes, status: int, text: str) -> None:
    block = line + b"\r\n\r\n"
    frame = read_frame(b"HMSG a 1 %d %d\r\n%b\r\n" % (len(block), len(block), block))
    assert frame is not None
    assert (frame.status, frame.status_text) == (status, text)


@each("text", ["Invalid Subject", "Invalid Publish Subject", 'Permissions Violation for Publish with Reply of "a.b"'])
def test_what_the_server_only_complains_of_costs_nothing(text: str) -> None:
    assert kinds(made(State.UP).receive(b"-ERR '%b'\r\n" % text.encode())) == [Complaint]


@each(
    "cause,texts",
    [
        (Cause.REFUSED, (
            "Authorization Violation", "User Authentication Expired", "Account Authentication Expired",
            "User Authentication Revoked",
        )),
        (Cause.SERVER, (
            "Authentication Timeout", "Failed Account Registration", "maximum connections exceeded",
            "maximum account active connections exceeded", "Maximum Payload Violation", "Slow Consumer",
            "maximum control line exceeded", "Unknown Protocol Operation", "Secure Connection - TLS Required",
            "Stale Connection", "invalid client protocol", "attempted to connect to route port",
            "Connection throttling is active. Please try again later.",
        )),
    ],
)  # fmt: skip
def test_an_error_behind_which_the_server_closes_ends_the_connection(cause: Cause, texts: Sequence[str]) -> None:
    for text, state in product(texts, (State.AUTHENTICATING, State.UP)):
        assert made(state).receive(b"-ERR '%b'\r\n" % text.encode()) == [Lost(cause, text)]
