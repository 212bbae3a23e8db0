"""Readers that stop, die, or take their time cost the broker no more than their limit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.services.malamute_broker.session.byte_queue import Overflow
from mama_spark.testing.waiting import until

from tests.support.malamute.raw_malamute_clients import Make


@pytest.mark.parametrize("overflow", Overflow)
def test_a_reader_that_stops_costs_no_more_than_its_limit(make: Make, overflow: Overflow) -> None:
    """The reference's memory grows by 1.1 KB a message until the reader expires."""
    limit, body = 1_000_000, b"x" * 10_000
    site = make(queue=limit, overflow=overflow)
    reader, writer, other = site.peer(b"r", hwm=10), site.peer(b"w"), site.peer(b"other")
    reader.ask(wire.StreamRead(b"st", b""))
    other.ask(wire.StreamRead(b"st", b"^last$"))
    writer.ask(wire.StreamWrite(b"st"))
    total = 4000
    for n in range(total):
        writer.send(wire.StreamSend(b"%d" % n, [body]))
        if n % 100 == 99:
            writer.ask()
    writer.send(wire.StreamSend(b"last"))
    assert other.get() == [wire.StreamDeliver(b"st", b"w", b"last", [])], "nobody else is held up"
    if overflow is Overflow.DISCONNECT:
        assert site.broker.clients() == [b"other", b"w"]
        return
    held = total - site.broker.counters()["lost_deliveries"]
    assert held * len(body) < limit + 40 * len(body) + 15_000_000, "the limit, and what ZeroMQ and the kernel hold"
    numbers = []
    for command in site.rest(reader):
        assert isinstance(command, wire.StreamDeliver)
        numbers.append(command.subject)
    assert numbers[-1] == b"last" or overflow is Overflow.DROP_NEWEST, "which may have room for one so small"
    kept = [int(n) for n in numbers if n != b"last"]
    assert kept == sorted(set(kept))
    assert len(kept) < total
    if overflow is Overflow.DROP_NEWEST:
        fit = limit // (len(body) + 350)
        assert kept[:fit] == list(range(fit)), "the oldest, without a hole"
    else:
        fit = limit // (len(body) + 350) - 1
        assert kept[-fit:] == list(range(total - fit, total)), "the newest, without a hole"
    assert reader.ask() == [], "and it is still a client"


def test_a_reader_that_dies_without_close_leaves_nothing_behind(make: Make) -> None:
    site = make(timeout=60.0)
    reader, writer = site.peer(b"r", hwm=10), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    writer.ask(wire.StreamWrite(b"st"))
    loop = site.broker._loop
    assert loop is not None
    n = 0
    while not loop.clients.blocked:
        writer.ask(*[wire.StreamSend(b"s", [b"x" * 10_000])] * 100)
        n += 1
        assert n < 1000
    reader.socket.close(0)
    site.until_nobody_is_left()
    until(lambda: not loop.clients.blocked)
    site.healthy()


@pytest.mark.parametrize(
    ("number", "size", "said"),
    [
        (10, 0, ""),
        (2000, 10_000, "{held} deliveries that waited for 1 clients, and {zeromq}"),  # more than the system takes
        (18, 1_000_000, "{zeromq}"),  # that, too, and fewer than ZeroMQ holds
    ],
)
def test_an_end_that_drops_something_says_what(
    make: Make, number: int, size: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = make()
    loop = site.broker._loop
    assert loop is not None
    loop._settings = replace(loop._settings, linger=0.2)
    reader, writer = site.peer(b"r", hwm=1), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    writer.ask(wire.StreamWrite(b"st"))
    for _ in range(number):
        writer.ask(wire.StreamSend(b"s", [b"x" * size]))
    site.broker.stop()
    held = f"{sum(client.queued for client in loop.machine.clients):,}"
    words = said.format(held=held, zeromq="what ZeroMQ held, 20 messages for each client at most")
    text = f"dropped at the end, for clients did not take it within 0.2 s (linger): {words}"
    assert [record.getMessage() for record in caplog.records] == ([text] if said else [])


def test_tcp_asks_after_clients_that_say_nothing(make: Make) -> None:
    """Else the connection of a host that vanished would stay for ever: its client expires, and nothing is sent."""
    site = make()
    site.peer(b"silent")
    port = int(site.broker.endpoint.rpartition(":")[2])

    def timer() -> tuple[str, float]:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            local, _, state, _, timer = line.split()[1:6]
            if int(local.partition(":")[2], 16) == port and state == "01":  # established
                kind, _, ticks = timer.partition(":")
                return kind, int(ticks, 16) / os.sysconf("SC_CLK_TCK")
        return "", 0.0

    until(lambda: timer()[0] == "02")  # what was sent is acknowledged, and all is quiet
    assert 1 < timer()[1] <= 60, "a probe after a minute at most; the system's own is after two hours"


def test_a_reader_with_credit_gets_all_though_it_is_slow(make: Make) -> None:
    site = make()
    reader, writer = site.peer(hwm=10).open(b"r", Feature.CREDIT), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    writer.ask(wire.StreamWrite(b"st"), *[wire.StreamSend(b"%d" % n, [b"x" * 1000]) for n in range(1000)])
    got: list[bytes] = []
    while len(got) < 1000:
        assert reader.ask() == [], "nothing beyond credit"
        reader.send(wire.Credit(100))
        got += [d.subject for d in reader.get(100) if isinstance(d, wire.StreamDeliver)]
    assert got == [b"%d" % n for n in range(1000)]
