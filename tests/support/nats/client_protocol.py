"""The client's side of a connection in a state, and what a server says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from mama_spark.nats.protocol.client import ClientProtocol, State
from mama_spark.nats.protocol.client_events import Event

INBOX = b"_INBOX.me."
LOGIN = {"user": "bob", "pass": "s3cret"}
ACK = b'MSG _INBOX.me.%012d 1 22\r\n{"stream":"S","seq":%d}\r\n'


def info(**fields: Any) -> bytes:
    return b"INFO %b\r\n" % orjson.dumps({"server_name": "n", "version": "2.11.3", "headers": True, **fields})


def made(state: State, *, tls: bool = False) -> ClientProtocol:
    """A protocol that has come to a state, at time 0."""
    client = ClientProtocol("me", "1", tls=tls or state is State.TLS, inbox=INBOX)
    if state is State.LOST:
        return client
    client.connect(0.0, lambda _: LOGIN)
    if state is State.CONNECTING:
        return client
    client.receive(info(tls_available=tls or state is State.TLS))
    if state is State.TLS:
        return client
    if tls:
        client.secured()
    if state is not State.AUTHENTICATING:
        client.receive(b"PONG\r\n")
    assert client.state is state
    return client


def kinds(events: Sequence[Event]) -> list[type]:
    return [type(event) for event in events]


INFO, PING, PONG, OK, MSG = info(), b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"MSG a 7 1\r\nx\r\n"
REFUSED, DENIED, ODD = (
    b"-ERR 'Authorization Violation'\r\n", b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n",
    b"-ERR 'Maximum Subscriptions Exceeded'\r\n",
)  # fmt: skip
