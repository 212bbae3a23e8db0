"""Clients at the broker's session machine: addresses, expiry, and what is reported of them."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands as wire

from tests.support.malamute.session_machine import INVALID, OK, PONG, MachineHarness


def test_an_address_goes_to_whoever_opens_it_last_and_closing_the_older_kills_nobody() -> None:
    desk = MachineHarness()
    desk.open("old", "name")
    desk.open("new", "name")
    assert desk.got("old") == []
    desk.open("w")
    desk.send("w", wire.MailboxSend(b"name", b"s"))
    assert [type(c) for c in desk.got("new")] == [wire.MailboxDeliver]
    assert desk.send("old", wire.Ping()) == [INVALID]
    assert desk.send("old", wire.Close()) == [OK]
    assert desk.send("new", wire.Ping()) == [PONG]
    desk.send("w", wire.MailboxSend(b"name", b"s"))
    assert [type(c) for c in desk.got("new")] == [wire.MailboxDeliver], "and still owns the address"


def test_anonymous_clients_are_many_and_have_no_mailbox() -> None:
    desk = MachineHarness()
    for client in ("a", "b"):
        desk.open(client, "")
    desk.send("a", wire.MailboxSend(b"", b"s"))
    assert desk.got("b") == []
    desk.open("c", "")
    assert desk.got("c") == []


def test_silence_drops_and_any_frame_counts_malformed_too() -> None:
    desk = MachineHarness(timeout=10)
    desk.open("talks")
    desk.open("silent")
    assert desk.machine.next_expiry() == 10
    desk.expire(6)
    desk.feed("talks", [b"rubbish"])
    desk.expire(6)
    assert desk.send("talks", wire.Ping()) == [PONG]
    assert desk.send("silent", wire.Ping()) == [INVALID]
    assert desk.received == {}


def test_a_timeout_of_zero_never_drops() -> None:
    desk = MachineHarness(timeout=0)
    desk.open("a")
    desk.expire(1e9)
    assert desk.machine.next_expiry() is None
    assert desk.send("a", wire.Ping()) == [PONG]


def test_strangers_leave_nothing_behind() -> None:
    desk = MachineHarness()
    for n in range(1000):
        desk.send(str(n), wire.Ping(), wire.StreamWrite(b"s"), wire.Close())
        desk.feed(str(n), [b"\xaa\xa8"])
    machine = desk.machine
    assert len(machine.clients) == len(machine.clients.by_address) == len(machine.streams) == len(machine.engines) == 0


def test_connects_subscriptions_and_disconnects_are_reported() -> None:
    """Discovery of topics reads CONNECTED, SUBSCRIBED, UNSUBSCRIBED, GONE (from READ, CANCEL, CLOSE, expiry)."""
    desk = MachineHarness(timeout=10)
    desk.open("a")
    desk.open("b")
    desk.send("a", wire.StreamRead(b"s", b"p"), wire.StreamRead(b"t", b"p"), wire.StreamCancel(b"s"), wire.Close())
    desk.send("b", wire.StreamRead(b"s", b"q"))
    desk.expire(11)
    assert desk.machine.events.take() == [
        ("CONNECTED", b"a", b"", b""), ("CONNECTED", b"b", b"", b""),
        ("SUBSCRIBED", b"a", b"s", b"p"), ("SUBSCRIBED", b"a", b"t", b"p"), ("UNSUBSCRIBED", b"a", b"s", b""),
        ("UNSUBSCRIBED", b"a", b"t", b""), ("GONE", b"a", b"", b"close"),
        ("SUBSCRIBED", b"b", b"s", b"q"), ("UNSUBSCRIBED", b"b", b"s", b""),
        ("GONE", b"b", b"", b"nothing heard for too long"),
    ]  # fmt: skip
