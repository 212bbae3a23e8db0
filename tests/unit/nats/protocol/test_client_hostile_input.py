"""The client's side of a connection without I/O: reads that are cut anywhere, and any bytes."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.nats.protocol.client import State
from mama_spark.nats.protocol.client_events import Acked, Event, Lost, Received
from mama_spark.nats.protocol.parser import Frame, read_frame
from mama_spark.nats.protocol.records import DeliveryParser

from tests.support.memory import peak_of
from tests.support.nats.client_protocol import (
    ACK,
    DENIED,
    INFO,
    LOGIN,
    MSG,
    ODD,
    OK,
    PING,
    PONG,
    info,
    kinds,
    made,
)
from tests.support.nats.deliveries import SID, NatsDelivery, frame, reply
from tests.support.tiers import examples

FRAMES = [
    INFO, PING, PONG, OK, MSG, DENIED, ODD, b"MSG big 7 70000\r\n%b\r\n" % bytes(70_000),
    b"HMSG _INBOX.me.000000000007 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    b"MSG a 7 re 0\r\n\r\n", frame(NatsDelivery("s", None, b"small"), reply(1)),
    frame(NatsDelivery("s", [("A", ["b"])], bytes(9_000)), reply(2)), *(ACK % (n, n) for n in range(3)),
]  # fmt: skip


def summary(events: list[Event]) -> list[object]:
    """Events, however acknowledgements are grouped."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Acked):
            found += [("ack", int(t)) for c in event.columns for t in np.concatenate(c.tokens)]
        else:
            found.append(event.frame.subject if isinstance(event, Received) else event)
    return found


@examples(2_000, few=200)
@given(st.lists(st.sampled_from(FRAMES), max_size=12), st.lists(st.integers(0, 10**6), max_size=12))
def test_reads_may_be_cut_anywhere(frames: list[bytes], at: list[int]) -> None:
    stream = b"".join([info(), PONG, *frames])
    cuts = sorted({n % (len(stream) + 1) for n in at} | {0, len(stream)})
    whole, cut = (made(State.LOST) for _ in range(2))
    deliveries = [DeliveryParser(SID) for _ in range(2)]
    for client, parser in zip((whole, cut), deliveries, strict=True):
        client.connect(0.0, lambda _: LOGIN)
        client.deliveries[SID] = partial(parser.take, most=100)
    found = [event for low, high in pairwise(cuts) for event in cut.receive(stream[low:high])]
    assert summary(found) == summary(whole.receive(stream))
    assert cut.state is whole.state is State.UP
    assert deliveries[0].buffer == deliveries[1].buffer
    assert len(deliveries[0].buffer) == sum(b"$JS.ACK" in frame for frame in frames)


def test_a_large_message_in_many_reads_is_looked_at_twice_not_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def read(data: bytes, at: int) -> Frame | None:
        looks.append(at)
        return read_frame(data, at)

    monkeypatch.setattr("mama_spark.nats.protocol.client.read_frame", read)
    client = made(State.UP)
    message = b"MSG a 7 3000000\r\n%b\r\n" % bytes(3_000_000)
    events = [e for at in range(0, len(message), 4096) for e in client.receive(message[at : at + 4096])]
    assert kinds(events) == [Received]
    assert len(looks) < 6


BAD = [
    b"MSG a 7 99999999999\r\n", b"MSG a 7 60000000\r\n", b"MSG a 7 -1\r\n", b"MSG\r\n",
    b"HMSG a 7 60000000 60000000\r\n", b"HMSG a 7 9 3\r\n", b"HMSG a 7 3 3\r\nabc\r\n",
    b"\r\n",
    b"MSG _INBOX.me.000000000001 1 22\r\n", b'{"stream":"S","seq":', b"INFO []\r\n", b"INFO {\r\n",
    b'INFO {"max_payload":"x"}\r\n', b'INFO {"connect_urls":{"a":1}}\r\n', b'INFO {"max_payload":-1}\r\n',
    b"-ERR\r\n",
    b"-ERR ''\r\n", b"-ERR '", b"A" * 5000, b"\x00", b"\xff\xfe", b"PING\n", b"PONG\r", b'INFO {"nonce":7}\r\n',
]  # fmt: skip
PIECES = st.one_of(st.sampled_from(FRAMES), st.binary(max_size=60), st.sampled_from(BAD))


@examples(20_000, few=200)
@given(st.sampled_from(State), st.lists(PIECES, max_size=8), st.booleans())
def test_no_bytes_of_a_server_raise_or_bring_out_more_than_events(state: State, pieces: list[bytes], tls: bool) -> None:
    client = made(state, tls=tls)
    for piece in pieces:
        before = client.state
        events = client.receive(piece)
        lost = [event for event in events if isinstance(event, Lost)]
        assert len(lost) == (before is not State.LOST and client.lost)
        assert not lost or events[-1] is lost[0]
        assert len(client._rest) <= 5_000 + 71_000
    if not client.lost:
        client.closed("end")
    client.connect(0.0, lambda _: LOGIN)
    assert client.state is State.CONNECTING, "usable again"


def receive_bad_frames() -> None:
    for state in State:
        for data in BAD:
            made(state).receive(data)


def test_announced_sizes_are_never_allocated() -> None:
    assert peak_of(receive_bad_frames).python < 4 << 20, "60 MB are announced"
