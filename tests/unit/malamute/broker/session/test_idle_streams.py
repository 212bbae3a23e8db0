"""Streams that nobody uses are given back, and one client has a limited number."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Error, Ok
from mama_spark.malamute.protocol.extensions import Feature

from tests.support.malamute.session_machine import ALL, MachineHarness

OK = Ok()


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
