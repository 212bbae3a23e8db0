"""Deliveries among the other frames of a connection: each goes its own way, and large ones stay where they came."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from mama_spark.nats.connection.inbound_parser import Deliveries, InboundParser
from mama_spark.nats.protocol.receive_buffer import ReceiveBuffer
from mama_spark.nats.protocol.records import DeliveryParser

from tests.support.nats.deliveries import SID, NatsDelivery, frame, held_to, reply
from tests.support.tiers import examples


class Stock:
    """The client's own parser, as far as the tap uses it."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def parse(self, data: bytes = b"") -> None:
        self.got.append(data)

    def reset(self) -> None:
        """Nothing is kept."""


class Hearing(Deliveries):
    """A feed that keeps everything in order."""

    def __init__(self) -> None:
        self.cutter = DeliveryParser(SID)
        self.said: list[tuple[str, int, str]] = []

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        return self.cutter.take(data, at)

    def on_status(self, subject: str, status: int, text: str) -> None:
        self.said.append((subject, status, text))


@examples(40)
@given(st.data())
def test_deliveries_go_to_the_feed_and_everything_else_its_own_way(data: st.DataObject) -> None:
    others = [
        b"PING\r\n",
        b"MSG other 9 2\r\nhi\r\n",
        b"HMSG other 9 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        b"INFO {}\r\n",
    ]
    status = b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Bytes: 17\r\n\r\n"
    sent = [NatsDelivery("s.a", [("A", ["1"])] if i % 3 else None, b"x" * (i * 37 % 200)) for i in range(1, 13)]
    stream, passed = b"", []
    for i, d in enumerate(sent, 1):
        stream += frame(d, reply(i))
        if data.draw(st.booleans()):
            passed.append(data.draw(st.sampled_from(others)))
            stream += passed[-1]
    stream += b"HMSG _INBOX.x.1 7 %d %d\r\n%b\r\n" % (len(status), len(status), status)
    stock, feed = Stock(), Hearing()
    tap = InboundParser(stock, lambda *_: None)
    tap.deliveries[b"%d" % SID] = feed
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))

    async def run() -> None:
        for low, high in pairwise([0, *cuts, len(stream)]):
            await tap.parse(stream[low:high])

    asyncio.run(run())
    held_to(feed.cutter.take_buffer(), sent)
    assert stock.got == passed
    assert feed.said == [("_INBOX.x.1", 409, "Batch Completed Nats-Pending-Bytes=17")]


class Sharing(Hearing):
    """The same, whose payloads may stay where they were received."""

    def take_shared(self, received: ReceiveBuffer) -> int:
        return self.cutter.take_shared(received)


async def come(tap: InboundParser, data: bytes) -> None:
    """A read of the socket: into the buffer while it is used."""
    if not tap.received.active:
        return await tap.parse(data)
    while data:
        space = tap.received.free_space()
        n = min(len(space), len(data))
        space[:n], data = data[:n], data[n:]
        tap.received.end += n
    return await tap.parse()


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_large_deliveries_stay_where_they_were_received(data: st.DataObject) -> None:
    """Among small ones, statuses and frames of others, however the reads cut them."""
    others = [b"PING\r\n", b"MSG other 9 2\r\nhi\r\n", b"MSG other 9 20000\r\n%b\r\n" % bytes(20_000)]
    status = b"NATS/1.0 409 Batch Completed\r\n\r\n"
    sizes = st.sampled_from([0, 30, 5_000, 17_000, 70_000, 700_000])
    sent, stream, passed, said = list[NatsDelivery](), [], [], 0
    for i, size in enumerate(data.draw(st.lists(sizes, min_size=1, max_size=10)), 1):
        sent.append(NatsDelivery("s.a", [("A", ["1"])] if i % 3 else None, bytes([i]) * size))
        stream.append(frame(sent[-1], reply(i)))
        if data.draw(st.booleans()):
            passed.append(data.draw(st.sampled_from(others)))
            stream.append(passed[-1])
        if data.draw(st.booleans()):
            said += 1
            stream.append(b"HMSG _INBOX.x.1 7 %d %d\r\n%b\r\n" % (len(status), len(status), status))
    whole = b"".join(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    stock, feed = Stock(), Sharing()
    tap = InboundParser(stock, lambda *_: None)
    tap.deliveries[b"%d" % SID] = feed

    async def run() -> None:
        for low, high in pairwise([0, *cuts, len(whole)]):
            await come(tap, whole[low:high])

    asyncio.run(run())
    held_to(feed.cutter.take_buffer(), sent)
    assert stock.got == passed
    assert len(feed.said) == said


def test_a_large_delivery_that_reads_cut_is_not_copied() -> None:
    sent = [NatsDelivery("s.a", None, bytes([i]) * 200_000) for i in range(12)]
    stream = b"".join(frame(d, reply(i)) for i, d in enumerate(sent, 1))
    feed = Sharing()
    tap = InboundParser(Stock(), lambda *_: None)
    tap.deliveries[b"%d" % SID] = feed

    async def run() -> None:
        for at in range(0, len(stream), 150_000):
            await come(tap, stream[at : at + 150_000])

    asyncio.run(run())
    buffer = feed.cutter.take_buffer()
    shared = [isinstance(p, memoryview) and not isinstance(p.obj, bytes) for p in buffer.payloads]
    assert shared == [True] * 12
    assert tap.received.active
    held_to(buffer, sent)
    asyncio.run(come(tap, b"PING\r\n"))
    assert not tap.received.active, "no large one came any more"


def test_a_large_delivery_in_many_reads_is_joined_once() -> None:
    sent = [NatsDelivery("s.a", None, bytes(3_000_000)), NatsDelivery("s.a", None, b"behind it")]
    stream = b"".join(frame(d, reply(i)) for i, d in enumerate(sent, 1))
    feed = Hearing()
    calls = 0

    def counted(data: bytes, at: int) -> tuple[int, int]:
        nonlocal calls
        calls += 1
        return Hearing.take(feed, data, at)

    feed.take = counted  # type: ignore[method-assign]
    tap = InboundParser(Stock(), lambda *_: None)
    tap.deliveries[b"%d" % SID] = feed

    async def run() -> None:
        for at in range(0, len(stream), 4096):
            await tap.parse(stream[at : at + 4096])

    asyncio.run(run())
    held_to(feed.cutter.take_buffer(), sent)
    assert calls < 10, "not looked at again with each read"


def test_a_new_connection_forgets_what_was_cut() -> None:
    whole = frame(NatsDelivery("s.a", None, bytes(100_000)), reply(1))
    feed = Hearing()
    tap = InboundParser(Stock(), lambda *_: None)
    tap.deliveries[b"%d" % SID] = feed

    async def run() -> None:
        await tap.parse(whole[:50_000])
        tap.reset()
        await tap.parse(frame(NatsDelivery("s.b", None, b"x"), reply(1)))

    asyncio.run(run())
    held_to(feed.cutter.take_buffer(), [NatsDelivery("s.b", None, b"x")])
