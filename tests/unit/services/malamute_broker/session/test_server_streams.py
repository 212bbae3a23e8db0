"""Streams at the broker's session machine: who gets what, subscriptions, lost engines, limits."""

from __future__ import annotations

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Error, StatusCode
from mama_spark.services.malamute_broker.session.streams import publish_handler

from tests.support.malamute.session_machine import FAILED, OK, PONG, MachineHarness, subjects, written


@pytest.mark.spec("S2", "S1")
def test_a_reader_gets_what_its_pattern_matches_in_order() -> None:
    desk = MachineHarness()
    written(desk, b"weather")
    desk.open("r")
    desk.send("r", wire.StreamRead(b"weather", b"temp.*"))
    for place in ("temp.moscow", "rain.moscow", "temp.chicago", "rain.chicago", "temp.london", "rain.london"):
        desk.send("w", wire.StreamSend(place.encode(), [b""]))
    assert subjects(desk.got("r")) == [b"temp.moscow", b"temp.chicago", b"temp.london"]


def test_subjects_without_end_are_told_apart_and_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_handler, "MAX_CACHED_SUBJECTS", 3)
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


def test_a_second_write_switches_the_stream() -> None:
    desk = MachineHarness()
    written(desk, b"one")
    desk.open("r")
    desk.send("r", wire.StreamRead(b"one", b""), wire.StreamRead(b"two", b""))
    desk.send("w", wire.StreamSend(b"a"), wire.StreamWrite(b"two"), wire.StreamSend(b"b"))
    assert [(d.address, d.subject) for d in desk.got("r") if isinstance(d, wire.StreamDeliver)] == [
        (b"one", b"a"), (b"two", b"b")
    ]  # fmt: skip


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
    assert repr(desk.engines[b"A"]) == "<SimpleEngine b'A', 0 patterns, 0 clients>"


def test_cancel_of_a_stream_never_read_is_answered_and_makes_no_stream() -> None:
    desk = MachineHarness()
    desk.open("a")
    assert desk.send("a", wire.StreamCancel(b"nowhere")) == [OK]
    assert desk.machine.streams.names == set()


def test_a_read_is_answered_when_the_engine_took_it_and_later_replies_wait_for_it() -> None:
    desk = MachineHarness()
    desk.open("a")
    desk.obedient = False
    desk.send("a", wire.StreamRead(b"st", b"p"), wire.Ping(), wire.StreamRead(b"st", b"("), wire.Ping())
    assert len(desk.machine.output) == 0
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


def test_repeated_reads_change_nothing_and_are_answered() -> None:
    desk = MachineHarness()
    desk.open("r")
    assert desk.send("r", *[wire.StreamRead(b"st", b"p")] * 5) == [OK] * 5
    assert len([e for e in desk.machine.events.take() if e[0] == "SUBSCRIBED"]) == 1


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
    assert desk.machine.counters.repeats > 0
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
