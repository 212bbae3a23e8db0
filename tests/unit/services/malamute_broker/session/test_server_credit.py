"""Credit of clients, and the limits of what waits for one (ML-21)."""

from __future__ import annotations

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import encode
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.services.malamute_broker.session.byte_queue import Overflow

from tests.support.malamute.session_machine import INVALID, PONG, MachineHarness, subjects, written
from tests.support.tables import each


def flood(desk: MachineHarness, n: int, first: int = 0) -> None:
    for i in range(first, first + n):
        desk.send("w", wire.StreamSend(b"%d" % i, [b"x" * 100]))


@pytest.mark.spec("ML-07", "ML-21")
def test_nothing_is_delivered_beyond_credit_and_all_kinds_count() -> None:
    """Stream, mailbox and service deliveries together; replies do not count."""
    desk = MachineHarness()
    written(desk)
    desk.open("r")
    desk.send("r", wire.StreamRead(b"st", b""), wire.ServiceOffer(b"svc", b""), wire.Credit(3))
    desk.send("w", wire.MailboxSend(b"r", b"m"), wire.ServiceSend(b"svc", b"v"))
    flood(desk, 5)
    assert [type(c) for c in desk.got("r")] == [wire.MailboxDeliver, wire.ServiceDeliver, wire.StreamDeliver]
    assert desk.send("r", wire.Ping()) == [PONG]
    assert subjects(desk.send("r", wire.Credit(2))) == [b"1", b"2"]
    assert subjects(desk.send("r", wire.Credit(65535))) == [b"3", b"4"]


def test_a_client_that_announces_credit_begins_with_none() -> None:
    desk = MachineHarness()
    written(desk)
    desk.open("r", features=Feature.CREDIT)
    desk.send("r", wire.StreamRead(b"st", b""))
    flood(desk, 2)
    assert desk.got("r") == []
    assert subjects(desk.send("r", wire.Credit(1))) == [b"0"]


@each(
    ("overflow", "expected"),
    [(Overflow.DROP_NEWEST, [b"0", b"1"]), (Overflow.DROP_OLDEST, [b"8", b"9"]), (Overflow.DISCONNECT, None)],
)
def test_what_waits_for_one_client_is_limited(overflow: Overflow, expected: list[bytes] | None) -> None:
    desk = MachineHarness(queue=750, overflow=overflow)
    written(desk)
    desk.open("r")
    desk.send("r", wire.StreamRead(b"st", b""))
    client = desk.machine.clients.by_identity[b"r"]
    client.blocked = True
    flood(desk, 10)
    assert desk.got("r") == []
    assert client.queue.size <= 750
    if expected is None:
        assert desk.send("r", wire.Ping()) == [INVALID]
    else:
        desk.machine.unblock(client)
        desk.obey()
        assert subjects(desk.got("r")) == expected
        assert desk.machine.counters.lost_deliveries == 8


def test_what_a_socket_did_not_take_comes_first_and_in_order() -> None:
    desk = MachineHarness()
    written(desk)
    desk.open("r")
    desk.send("r", wire.StreamRead(b"st", b""))
    reader = desk.machine.clients.by_identity[b"r"]
    desk.machine.output.block(reader, encode(wire.StreamDeliver(b"st", b"w", b"refused")))
    flood(desk, 2)
    desk.send("r", wire.Ping())
    assert desk.got("r") == []
    desk.machine.unblock(desk.machine.clients.by_identity[b"r"])
    desk.obey()
    first, pong, *rest = desk.got("r")
    assert (subjects([first]), pong, subjects(rest)) == ([b"refused"], PONG, [b"0", b"1"])


def test_who_asks_for_ever_and_never_reads_is_dropped() -> None:
    desk = MachineHarness(queue=32 * 100)
    desk.open("a")
    desk.machine.clients.by_identity[b"a"].blocked = True
    for _ in range(200):
        desk.feed("a", encode(wire.Ping()))
    assert b"a" not in desk.machine.clients.by_identity
