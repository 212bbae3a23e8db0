"""Mailboxes and services at the broker's session machine (ML-23, ML-24)."""

from __future__ import annotations

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.services.malamute_broker.session.mailboxes.mailbox_store import OVERHEAD, Limits

from tests.support.malamute.session_machine import OK, PONG, MachineHarness


@pytest.mark.spec("C11", "ML-23")
def test_mailbox_messages_wait_for_an_absent_client_and_come_in_order_after_its_ok() -> None:
    desk = MachineHarness()
    desk.open("w")
    desk.send("w", wire.MailboxSend(b"r", b"1", content=[b"a", b"b"]), wire.MailboxSend(b"r", b"2"))
    ok, *letters = desk.send("r", wire.Open(b"r"))
    assert ok == OK
    assert letters == [
        wire.MailboxDeliver(b"w", b"r", b"1", b"", [b"a", b"b"]), wire.MailboxDeliver(b"w", b"r", b"2", b"", [])
    ]  # fmt: skip


def test_mailboxes_are_limited_each_and_together_and_the_sender_is_told() -> None:
    desk = MachineHarness(mailboxes=Limits(each=10, total=15 + 3 * OVERHEAD, count=2))
    desk.open("w", features=Feature.CONFIRM)
    room = Error(300, b"no room").reason

    def put(address: bytes, size: int) -> list[Command]:
        return desk.send("w", wire.MailboxSend(address, b"s", b"t", content=[b"x" * size]))

    assert put(b"a", 10) == []
    assert put(b"a", 1) == [wire.Confirm(b"t", 300, room)]
    assert put(b"b", 5) == []
    assert put(b"b", 1) == [wire.Confirm(b"t", 300, room)], "together"
    assert put(b"c", 0) == [wire.Confirm(b"t", 300, room)], "addresses"
    assert put(b"a", 0) == []
    assert put(b"a", 0) == [wire.Confirm(b"t", 300, room)], "without content, too"
    desk.open("r", "x")
    assert len(desk.send("r2", wire.Open(b"a"))) == 3
    assert desk.got("w") == [wire.Confirm(b"t")] * 2
    assert put(b"c", 5) == []


@pytest.mark.spec("C2", "C12", "C3", "ML-24")
def test_requests_go_round_and_wait_when_nobody_offers() -> None:
    """The requester may be gone."""
    desk = MachineHarness()
    desk.open("q")
    desk.send("q", wire.ServiceSend(b"svc", b"early.1"), wire.ServiceSend(b"svc", b"other"), wire.Close())
    for worker in ("k1", "k2"):
        desk.open(worker)
    ok, early = desk.send("k1", wire.ServiceOffer(b"svc", b"early.*"))
    assert (ok, type(early)) == (OK, wire.ServiceDeliver)
    desk.send("k2", wire.ServiceOffer(b"svc", b"early.*"))
    desk.open("q")
    for n in range(4):
        desk.send("q", wire.ServiceSend(b"svc", b"early.%d" % n, b"trk"))
    for worker, want in (("k1", [b"early.0", b"early.2"]), ("k2", [b"early.1", b"early.3"])):
        got = desk.got(worker)
        assert [c.subject for c in got if isinstance(c, wire.ServiceDeliver)] == want
        assert all(c.tracker == b"trk" for c in got if isinstance(c, wire.ServiceDeliver))


def test_an_offer_with_a_bad_pattern_is_refused_and_the_client_kept() -> None:
    desk = MachineHarness()
    desk.open("k")
    (refused,) = desk.send("k", wire.ServiceOffer(b"svc", b")"))
    assert isinstance(refused, Error)
    assert (refused.code, b"pattern" in refused.reason) == (300, True)
    assert desk.send("k", wire.Ping()) == [PONG]


def test_requests_of_a_worker_that_went_without_confirming_go_to_another() -> None:
    desk = MachineHarness(timeout=10)
    desk.open("q")
    desk.open("k1", features=Feature.CONFIRM)
    desk.send("k1", wire.ServiceOffer(b"svc", b""))
    desk.send("q", wire.ServiceSend(b"svc", b"1", b"t"), wire.ServiceSend(b"svc", b"2", b"u"))
    assert len(desk.send("k1", wire.Confirm(b"t"))) == 2
    desk.expire(11)
    desk.open("k2")
    ok, again = desk.send("k2", wire.ServiceOffer(b"svc", b""))
    assert (ok, again) == (OK, wire.ServiceDeliver(b"q", b"svc", b"2", b"u", []))


def test_letters_without_credit_go_back_when_their_receiver_leaves() -> None:
    desk = MachineHarness()
    desk.open("w")
    desk.open("r", features=Feature.CREDIT)
    desk.send("w", wire.MailboxSend(b"r", b"1"), wire.MailboxSend(b"r", b"2"))
    assert desk.send("r", wire.Close()) == [OK]
    assert [c.subject for c in desk.send("r", wire.Open(b"r")) if isinstance(c, wire.MailboxDeliver)] == [b"1", b"2"]
