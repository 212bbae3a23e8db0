"""Extensions at the broker's session machine: ids, headers, acknowledgements, confirmations, deadlines."""

from __future__ import annotations

import struct

import pytest
from mama_spark.malamute.broker.session.clients import PendingReply
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol import message_blocks
from mama_spark.malamute.protocol.commands import Error, Ok, Pong, StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write

from tests.support.malamute.session_machine import ALL, OK, PONG, MachineHarness


def test_the_broker_says_what_it_does_of_what_a_client_understands() -> None:
    desk = MachineHarness(features=Feature.ACKS | Feature.HEADERS)
    (ok,) = desk.send("a", wire.Open(b"a", write(Extension(features=ALL))))
    assert isinstance(ok, Ok)
    assert read(ok.trailing).features == Feature.ACKS | Feature.HEADERS


def test_ids_and_headers_travel_between_clients_that_announced_them_alone() -> None:
    desk = MachineHarness()
    desk.open("w", features=Feature.HEADERS)
    desk.open("r", features=Feature.HEADERS)
    desk.open("q", features=Feature.SEQUENCE)
    assert desk.send("c", wire.Open(b"c", b"unreadable")) == [OK]
    desk.send("w", wire.StreamWrite(b"st"))
    for reader in ("r", "q", "c"):
        desk.send(reader, wire.StreamRead(b"st", b""))
    sent = Extension(message_id=b"id", headers=((b"k", b"v"), (b"k", b"w")))
    desk.send("w", wire.StreamSend(b"s", [], write(sent)))
    (delivery,) = desk.got("r")
    assert isinstance(delivery, wire.StreamDeliver)
    assert read(delivery.trailing) == sent
    assert desk.got("q") == desk.got("c") == [wire.StreamDeliver(b"st", b"w", b"s", [])]


def test_a_block_with_a_message_of_too_many_headers_disconnects_its_client() -> None:
    desk = MachineHarness()
    desk.open("w", features=ALL | Feature.BLOCKS)
    desk.open("r", features=ALL | Feature.BLOCKS)
    desk.send("w", wire.StreamWrite(b"st"))
    desk.send("r", wire.StreamRead(b"st", b""))
    extensions = [write(Extension(headers=((b"", b""),) * n)) for n in (1, 65_537)]
    sends = [wire.encode(wire.StreamSend(b"s", [], extension))[0] for extension in extensions]
    lengths = struct.pack(">4I", *map(len, sends), 0, 0)
    desk.feed("w", message_blocks.pack(2, lengths, b"".join(sends), b""))
    assert desk.got("w") == [Error(StatusCode.FAILED, b"a message has more than 65536 headers")]
    assert desk.got("r") == [], "not the other one of the block either"


def test_a_pong_behind_sends_acknowledges_them_once_the_engine_has_them() -> None:
    desk = MachineHarness()
    desk.open("w", features=Feature.ACKS)
    desk.send("w", wire.StreamWrite(b"st"))
    desk.obedient = False
    for _ in range(3):
        desk.send("w", wire.StreamSend(b"s"))
    desk.send("w", wire.Ping(), wire.Ping())
    assert len(desk.machine.clients.outgoing) == 0
    desk.obey()
    acked, bare = desk.got("w")
    assert isinstance(acked, Pong)
    assert read(acked.trailing).acks == (AckRun(StoreOutcome.ACCEPTED, 3),)
    assert bare == PONG


def asking_about_two_streams() -> MachineHarness:
    """A client has sent two messages to `a` and three to `b`, and asked; both streams are open."""
    desk = MachineHarness()
    desk.open("w", features=Feature.ACKS)
    desk.obedient = False
    sends = [wire.StreamSend(b"s")]
    desk.send("w", wire.StreamWrite(b"a"), *sends * 2, wire.StreamWrite(b"b"), *sends * 3, wire.Ping())
    for stream in (b"a", b"b"):
        desk.machine.command_done(stream)
    desk.machine.streams.take_commands()
    desk.obey()
    assert desk.got("w") == [OK, OK]
    return desk


def test_what_became_of_messages_is_told_in_their_order_whichever_engine_answers_first() -> None:
    desk = asking_about_two_streams()
    desk.machine.command_done(b"b", None, (AckRun(StoreOutcome.STORED, 3, 7),))
    desk.obey()
    assert desk.got("w") == [], "not before all have answered"
    desk.machine.command_done(b"a")
    desk.obey()
    (acked,) = desk.got("w")
    assert isinstance(acked, Pong)
    assert read(acked.trailing).acks == (AckRun(StoreOutcome.ACCEPTED, 2), AckRun(StoreOutcome.STORED, 3, 7))


def test_who_asks_about_a_stream_that_is_lost_is_told_so_and_nothing_else() -> None:
    desk = asking_about_two_streams()
    client = desk.machine.clients.by_identity[b"w"]
    client.pending_replies.appendleft(PendingReply())  # something in front of it is not answered yet
    desk.machine.stream_lost(b"a", "the disk is full")
    desk.machine.command_done(b"b", None, (AckRun(StoreOutcome.STORED, 3, 7),))
    client.pending_replies.popleft()
    desk.machine.clients.advance(client)
    desk.obey()
    assert desk.got("w") == [Error(502, b"the disk is full")]


def test_who_asks_when_a_stream_was_lost_that_it_had_sent_to_is_told_so_once() -> None:
    """A PONG would acknowledge messages of which nobody knows whether they are stored."""
    desk = MachineHarness()
    desk.open("w", features=Feature.ACKS)
    desk.send("w", wire.StreamWrite(b"b"), wire.StreamSend(b"s"), wire.StreamWrite(b"a"), wire.StreamSend(b"s"))
    desk.machine.stream_lost(b"a", "nothing was heard of NATS")
    assert desk.send("w", wire.Ping()) == [Error(502, b"nothing was heard of NATS")]
    assert desk.send("w", wire.Ping()) == [PONG]


@pytest.mark.spec("ML-26")
def test_trackers_and_confirms() -> None:
    """The sender learns what became of a message, from the receiver where that can say it."""
    desk = MachineHarness()
    desk.open("w", features=Feature.CONFIRM)
    desk.open("own", features=Feature.CONFIRM)
    desk.open("c")
    assert desk.send("w", wire.MailboxSend(b"c", b"s", b"t1")) == [wire.Confirm(b"t1")]
    assert desk.send("w", wire.MailboxSend(b"own", b"s", b"t2"), wire.MailboxSend(b"own", b"s", b"t3")) == []
    assert desk.got("own") == [wire.MailboxDeliver(b"w", b"own", b"s", t, []) for t in (b"t2", b"t3")]
    desk.send("own", wire.Confirm(b"t3"), wire.Confirm(b"unknown"), wire.Confirm(b"t2", 300, b"no"))
    assert desk.got("w") == [wire.Confirm(b"t3"), wire.Confirm(b"t2", 300, b"no")]
    desk.send("c", wire.ServiceOffer(b"svc", b""))
    assert desk.send("w", wire.ServiceSend(b"svc", b"s", b"t4")) == [wire.Confirm(b"t4")]
    assert desk.send("w", wire.ServiceSend(b"svc", b"s"), wire.MailboxSend(b"c", b"s")) == [], "without a tracker"


@pytest.mark.spec("ML-26")
def test_timeouts_of_letters_are_honoured() -> None:
    desk = MachineHarness(timeout=0)
    desk.open("w", features=Feature.CONFIRM)
    desk.send("w", wire.MailboxSend(b"absent", b"s", b"t1", 500), wire.ServiceSend(b"svc", b"s", b"t2", 1500))
    assert desk.machine.next_expiry() == 0.5
    desk.expire(1)
    assert desk.got("w") == [wire.Confirm(b"t1", 300, b"timeout")]
    desk.open("k", "absent")
    assert desk.got("k") == []
    desk.expire(1)
    assert desk.got("w") == [wire.Confirm(b"t2", 300, b"timeout")]


def test_deadlines_of_letters_that_were_taken_do_not_pile_up() -> None:
    desk = MachineHarness(timeout=0)
    desk.open("w")
    for n in range(5000):
        desk.send("w", wire.MailboxSend(b"r", b"s", timeout=2**32 - 1))
        if n % 100 == 99:
            assert len(desk.send("r", wire.Open(b"r"), wire.Close())) == 102
    assert len(desk.machine.mailboxes._deadlines) <= 2048


def test_letters_that_are_too_old_go_whatever_their_order_and_nobody_waits_for_it() -> None:
    """Each at a time of its own, the last one first: in passes over all, but not one for each."""
    desk = MachineHarness(timeout=0)
    desk.open("w")
    count = 800
    for n in range(count):
        desk.send("w", wire.MailboxSend(b"r", b"%d" % n, timeout=count - n))
        desk.now += 0.0009  # a tenth of a millisecond is between the ends of two
    looks = 0
    while (due := desk.machine.next_expiry()) is not None:
        desk.expire(due - desk.now)
        looks += 1
    assert len(desk.machine.mailboxes.mailboxes) == desk.machine.mailboxes.mailboxes.size == 0
    assert looks < 0.6 * count
