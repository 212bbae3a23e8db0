"""The machine of the broker: clients, credit, mailboxes, services and streams."""

from __future__ import annotations

import pytest
from mama_spark.malamute.broker.session import publishing
from mama_spark.malamute.broker.session.settings import LETTER_OVERHEAD, Limits, Overflow
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, StatusCode, encode
from mama_spark.malamute.protocol.extensions import Feature

from tests.support.malamute.session_machine import ALL, FAILED, INVALID, OK, PONG, MachineHarness, subjects, written
from tests.support.tables import each

# --- clients at the broker's session machine: addresses, expiry, and what is reported of them -------------------------


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


def test_what_a_client_does_is_reported_once_whatever_it_repeats() -> None:
    """Who publishes to several streams says WRITE before each chunk."""
    desk = MachineHarness(timeout=10)
    desk.open("a")
    desk.send("a", *[wire.StreamWrite(stream) for stream in (b"s", b"t", b"s")])
    assert desk.send("a", *[wire.StreamRead(b"s", b"p")] * 3, wire.StreamRead(b"t", b"p")) == [OK] * 4
    assert desk.send("a", wire.StreamCancel(b"s"), wire.StreamCancel(b"nowhere")) == [OK] * 2
    assert set(desk.machine.streams) == {b"s", b"t"}
    desk.expire(11)
    assert desk.machine.clients.events.take() == [
        ("CONNECTED", b"a", b"", b""), ("WRITING", b"a", b"s", b""), ("WRITING", b"a", b"t", b""),
        ("SUBSCRIBED", b"a", b"s", b"p"), ("SUBSCRIBED", b"a", b"t", b"p"), ("UNSUBSCRIBED", b"a", b"s", b""),
        ("UNSUBSCRIBED", b"a", b"t", b""), ("STOPPED", b"a", b"s", b""), ("STOPPED", b"a", b"t", b""),
        ("GONE", b"a", b"", b"nothing heard for too long"),
    ]  # fmt: skip


# --- credit of clients, and the limits of what waits for one (ML-21) --------------------------------------------------


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
        assert desk.machine.clients.counters.lost_deliveries == 8


def test_what_a_socket_did_not_take_comes_first_and_in_order() -> None:
    desk = MachineHarness()
    written(desk)
    desk.open("r")
    desk.send("r", wire.StreamRead(b"st", b""))
    reader = desk.machine.clients.by_identity[b"r"]
    desk.machine.clients.block(reader, encode(wire.StreamDeliver(b"st", b"w", b"refused")))
    flood(desk, 2)
    desk.send("r", wire.Ping())
    assert desk.got("r") == []
    desk.machine.unblock(desk.machine.clients.by_identity[b"r"])
    desk.obey()
    first, pong, *rest = desk.got("r")
    assert (subjects([first]), pong, subjects(rest)) == ([b"refused"], PONG, [b"0", b"1"])


# --- mailboxes and services at the broker's session machine (ML-23, ML-24) --------------------------------------------


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
    desk = MachineHarness(mailboxes=Limits(each=10, total=15 + 3 * LETTER_OVERHEAD, count=2))
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


# --- streams at the broker's session machine: who gets what, subscriptions, lost engines, limits ----------------------


def test_subjects_without_end_are_told_apart_and_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MAX_CACHED_SUBJECTS", 3)
    desk = MachineHarness()
    written(desk, b"st")
    desk.open("r")
    desk.send("r", wire.StreamRead(b"st", b""))
    sent = [b"%d" % (n // 2 % 7) for n in range(40)] + [b"", b"x" * 255, b""]
    for subject in sent:
        desk.send("w", wire.StreamSend(subject, [b""]))
        assert len(desk.machine.publishing.subjects) <= 3
    assert subjects(desk.got("r")) == sent


def test_what_is_sent_behind_a_refused_write_does_not_go_to_the_stream_before() -> None:
    desk = MachineHarness(streams=1)
    desk.open("r")
    desk.send("r", wire.StreamRead(b"1", b""))
    desk.open("w")
    got = desk.send("w", wire.StreamWrite(b"1"), wire.StreamWrite(b"2"), wire.StreamSend(b"s", [b"x"]))
    assert got == [OK, Error(300, b"too many streams"), FAILED]
    assert desk.got("r") == []


def test_cancel_of_one_of_several_reads_keeps_the_others_and_disconnecting_is_safe() -> None:
    """READ A, READ B, CANCEL B, disconnect, message on A: use after free in the reference."""
    desk = MachineHarness()
    written(desk, b"A")
    desk.open("r")
    desk.send("r", wire.StreamRead(b"A", b"x"), wire.StreamRead(b"B", b"x"), wire.StreamCancel(b"B"))
    desk.send("w", wire.StreamSend(b"x"))
    assert subjects(desk.got("r")) == [b"x"]
    assert desk.send("r", wire.Close()) == [OK]
    assert desk.send("w", wire.StreamSend(b"x"), wire.Ping()) == [PONG]
    assert desk.got("r") == []
    assert desk.engines[b"A"].may_end()


def test_a_read_is_answered_when_the_engine_took_it_and_later_replies_wait_for_it() -> None:
    desk = MachineHarness()
    desk.open("a")
    desk.obedient = False
    desk.send("a", wire.StreamRead(b"st", b"p"), wire.Ping(), wire.StreamRead(b"st", b"("), wire.Ping())
    assert len(desk.machine.clients.outgoing) == 0
    desk.obey()
    ok, pong, refused, again = desk.got("a")
    assert (ok, pong, again) == (OK, PONG, PONG)
    assert isinstance(refused, Error)
    assert refused.code == StatusCode.FAILED
    assert b"pattern" in refused.reason
    assert desk.machine.clients.by_identity[b"a"].subscriptions == {b"st": {b"p"}}


def test_a_lost_engine_is_an_internal_error_to_who_waits() -> None:
    desk = MachineHarness()
    written(desk)
    desk.obedient = False
    desk.send("w", wire.StreamRead(b"st", b"p"), wire.Ping())
    desk.machine.stream_lost(b"st", "disk full")
    desk.obey()
    assert desk.got("w") == [Error(502, b"disk full"), PONG]
    desk.obedient = True
    assert desk.send("w", wire.StreamWrite(b"st")) == [OK], "a new engine may begin"


def test_a_replay_storm_ends() -> None:
    """The C client after remove_consumer and a restart of the broker repeats all its commands on every OK, forever."""
    desk = MachineHarness(repeats=100)
    desk.open("c")
    storm = (wire.StreamWrite(b"out"), wire.StreamRead(b"in", b"^a"), wire.ServiceOffer(b"svc", b"x"))
    oks, rounds = len(desk.send("c", *storm)), 0
    while oks:
        rounds += 1
        assert rounds < 1000, "the storm feeds itself"
        oks = len([r for _ in range(min(oks, 100)) for r in desk.send("c", *storm) if r == OK])
    assert desk.machine.clients.counters.repeats > 0
    assert desk.send("c", wire.Ping()) == [PONG]
    desk.now += 1.5
    assert desk.send("c", *storm) == [OK] * 3, "who repeats with reason is answered again"


def test_limits_of_streams_and_subscriptions_refuse_and_keep_the_client() -> None:
    desk = MachineHarness(streams=1, patterns=1)
    desk.open("a")
    assert desk.send("a", wire.StreamWrite(b"1"), wire.StreamWrite(b"2")) == [OK, Error(300, b"too many streams")]
    assert desk.send("a", wire.StreamRead(b"1", b"a"), wire.StreamRead(b"1", b"b")) == [
        OK, Error(300, b"too many subscriptions")
    ]  # fmt: skip
    assert desk.send("a", wire.ServiceOffer(b"1", b"a"), wire.ServiceOffer(b"1", b"b")) == [
        OK, Error(300, b"too many offers")
    ]  # fmt: skip
    assert desk.send("a", wire.Ping()) == [PONG]


# --- streams that nobody uses are given back, and one client has a limited number ---------------------------------


def idle(desk: MachineHarness, after: float) -> list[bytes]:
    desk.now += after
    return sorted(desk.machine.streams.idle(desk.now))


def test_a_stream_is_idle_when_no_client_has_used_it_for_the_time() -> None:
    desk = MachineHarness(timeout=0.0, stream_idle=30.0)
    desk.open("c")
    assert desk.send("c", wire.StreamRead(b"read", b"")) == [OK]
    assert desk.send("c", wire.StreamWrite(b"earlier")) == [OK]
    assert desk.send("c", wire.StreamWrite(b"written")) == [OK]
    assert idle(desk, 0.0) == []
    assert idle(desk, 29.0) == []
    assert idle(desk, 10.0) == [b"earlier"]
    desk.send("c", wire.StreamCancel(b"read"), wire.StreamWrite(b"earlier"))
    assert idle(desk, 10.0) == []
    assert idle(desk, 40.0) == [b"read", b"written"], "used again, it is not idle"
    desk.send("c", wire.Close())
    assert idle(desk, 10.0) == [b"read", b"written"]
    assert idle(desk, 40.0) == [b"earlier", b"read", b"written"]


def test_a_stream_is_not_idle_while_something_is_due_to_its_engine_or_from_it() -> None:
    desk = MachineHarness(timeout=0.0, stream_idle=30.0)
    desk.open("c", features=ALL | Feature.SENDING)
    desk.send("c", wire.StreamWrite(b"s"), wire.StreamSend(b"a"), wire.StreamWrite(b"other"))
    assert idle(desk, 0.0) == idle(desk, 100.0) == [], "its acknowledgement is not asked for yet"
    desk.obedient = False
    desk.send("c", wire.Ping())
    assert idle(desk, 10.0) == idle(desk, 100.0) == []
    desk.obey()
    assert idle(desk, 10.0) == [b"s"], "unused since the look before"


def test_the_broker_keeps_its_own_stream_and_with_0_all_streams() -> None:
    for settings, kept in (({"stream_idle": 0.0}, b"s"), ({"events": b"s", "stream_idle": 1.0}, b"s")):
        desk = MachineHarness(timeout=0.0, **settings)
        desk.open("c")
        desk.send("c", wire.StreamRead(kept, b""), wire.Close())
        assert idle(desk, 0.0) == idle(desk, 1000.0) == []


def test_an_ended_stream_leaves_nothing_and_opens_again() -> None:
    desk = MachineHarness(timeout=0.0)
    desk.open("c")
    desk.send("c", wire.StreamWrite(b"s"), wire.StreamRead(b"s", b""), wire.StreamCancel(b"s"), wire.StreamWrite(b"t"))
    desk.machine.clients.events.take()
    desk.machine.stream_ended(b"s")
    assert list(desk.machine.streams) == [b"t"]
    assert desk.machine.clients.events.take() == [("STOPPED", b"c", b"s", b"")]
    assert desk.send("c", wire.StreamWrite(b"s")) == [OK]
    assert sorted(desk.machine.streams) == [b"s", b"t"]


def test_one_client_has_a_limit_of_streams() -> None:
    desk = MachineHarness(timeout=0.0, client_streams=2)
    desk.open("c")
    assert desk.send("c", wire.StreamRead(b"1", b""), wire.StreamWrite(b"2")) == [OK, OK]
    refused = Error(300, b"too many streams of one client")
    assert desk.send("c", wire.StreamRead(b"3", b""), wire.StreamWrite(b"3")) == [refused, refused]
    assert desk.send("c", wire.StreamRead(b"2", b""), wire.StreamWrite(b"1")) == [OK, OK], "those that it has"
    assert sorted(desk.machine.streams) == [b"1", b"2"]
    desk.send("c", wire.StreamCancel(b"1"), wire.StreamCancel(b"2"))
    desk.machine.stream_ended(b"2")
    assert desk.send("c", wire.StreamRead(b"3", b"")) == [OK], "one that was given back counts no more"
    desk.open("other")
    assert desk.send("other", wire.StreamWrite(b"4")) == [OK]
