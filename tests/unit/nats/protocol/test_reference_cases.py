"""The cases by which the servers' and the Go client's own tests describe the protocol, as far as a client meets them.

From nats-server (``test/{proto,ping,maxpayload,verbose,tls}_test.go``, the ``sendErr`` calls of ``server/*.go``) and
nats.go (``nats_test.go``: ``TestParser*``, ``TestNormalizeError``, ``TestAsyncINFO``, ``TestHeaderParser``).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mama_spark.contracts.errors import TooLarge
from mama_spark.nats.protocol.client import ClientProtocol, State
from mama_spark.nats.protocol.client_events import Complaint, Denied, Event, Lost, Write
from mama_spark.nats.protocol.parser import Frame, ProtocolError, read_frame

from tests.support.tables import each


def up(info: bytes = b"{}") -> ClientProtocol:
    client = ClientProtocol("me", "1")
    client.connect(0.0, lambda _: {})
    client.receive(b"INFO " + info + b"\r\n")
    client.receive(b"PONG\r\n")
    assert client.state is State.UP
    return client


def seen(event: Event) -> object:
    return event.data if isinstance(event, Write) else type(event)


@each(
    "data",
    [
        *(b" PING\r\n", b"POO\r\n", b"Px\r\n", b"PIx\r\n", b"PINx\r\n", b"POx\r\n", b"PONx\r\n", b"ZOO\r\n"),
        *(b"Mx\r\n", b"MSx\r\n", b"MSGx\r\n", b"MSG  foo\r\n", b"MSG \r\n", b"MSG foo 1\r\n", b"MSG foo bar 1 baz\r\n"),
        *(b"MSG foo 1 bar baz\r\n", b"MSG a\r\n", b"MSG a b c\r\n", b"+x\r\n", b"+Ox\r\n"),
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


UP, LOST = State.UP, State.LOST


@each(
    "data,state,events",
    [
        (b"PING\r\n" * 3, UP, [b"PONG\r\n"] * 3),  # TestPingInterval
        (b"PONG\r\n", UP, []),  # TestUnpromptedPong
        (b"+OK\r\n+OK\r\nPING\r\n", UP, [b"PONG\r\n"]),  # TestVerbose*
        # what the server says, and goes on:
        (b"-ERR 'Invalid Subject'\r\n", UP, [Complaint]),  # TestProtoErr
        (b"-ERR 'Invalid Publish Subject'\r\n", UP, [Complaint]),
        (b"-ERR 'maximum subscriptions exceeded'\r\n", UP, [Complaint]),
        (b"-ERR 'Permissions Violation for Publish to \"a.b\"'\r\n", UP, [Denied]),
        (b"-ERR 'Permissions Violation for Publish with Reply of \"a.b\"'\r\n", UP, [Complaint]),
        (b"-ERR 'Permissions Violation for Subscription to \"a.b\" using queue \"q\" (sid \"7\")'\r\n", UP, [Denied]),
        (b"-ERR 'Permissions Violation for Subscription to \"a.b\" (sid \"7\")'\r\n", UP, [Denied]),
        # and behind which it closes the connection:
        *(
            (b"-ERR '%b'\r\n" % text, LOST, [Lost])
            for text in (
                b"Authorization Violation", b"Authentication Timeout", b"User Authentication Expired",
                b"Account Authentication Expired", b"User Authentication Revoked", b"Failed Account Registration",
                b"maximum connections exceeded", b"maximum account active connections exceeded",
                b"Maximum Payload Violation", b"maximum control line exceeded", b"Unknown Protocol Operation",
                b"Secure Connection - TLS Required", b"Stale Connection", b"invalid client protocol",
                b"Connection throttling is active. Please try again later.", b"attempted to connect to route port",
            )
        ),
    ],
)  # fmt: skip
def test_a_client_does_what_the_server_expects(data: bytes, state: State, events: Sequence[object]) -> None:
    client = up()
    assert ([seen(event) for event in client.receive(data)], client.state) == (list(events), state)


def test_a_smaller_limit_of_payloads_counts_from_when_it_is_announced() -> None:
    """``TestAsyncInfoWithSmallerMaxPayload``, ``TestMaxPayload``: 100 bytes are taken, then no more."""
    client = up(b'{"max_payload":101}')
    assert client.send_message("a", bytes(101)) == b"PUB a 101\r\n%b\r\n" % bytes(101)
    client.receive(b'INFO {"max_payload":100}\r\n')
    with pytest.raises(TooLarge, match="101 bytes"):
        client.send_message("a", bytes(101))
