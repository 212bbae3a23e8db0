"""The broker and engines that are slow, die, cannot be made, or deliver what fits in no command."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong
from mama_spark.malamute.protocol.extensions import ALL, AckRun, Feature, StoreOutcome, read
from mama_spark.services.malamute_broker.broker import broker as broker_module
from mama_spark.testing.waiting import until

from tests.support.malamute.raw_malamute_clients import OK, Make


def test_acknowledgements_come_behind_what_a_slow_engine_took(make: Make) -> None:
    site = make()
    writer = site.peer().open(b"w", Feature.ACKS)
    writer.send(wire.StreamWrite(b"slow"), *[wire.StreamSend(b"s")] * 7, wire.Ping())
    ok, pong = writer.get(2)
    assert ok == OK
    assert isinstance(pong, Pong)
    assert read(pong.trailing).acks == (AckRun(StoreOutcome.ACCEPTED, 7),)


def test_an_engine_that_dies_is_told_to_its_clients_and_to_no_others(make: Make, caplog: Any) -> None:
    site = make()
    peer = site.peer(b"a")
    peer.send(wire.StreamRead(b"broken", b"x"))
    assert peer.get() == [Error(502, b"disk full")]
    assert peer.ask() == []
    site.healthy()
    assert "disk full" in caplog.text


@pytest.mark.parametrize("subject", [b"long", b"large header"])
def test_an_engine_that_delivers_what_fits_in_no_command_ends_its_stream_and_no_other(
    make: Make, caplog: Any, subject: bytes
) -> None:
    site = make()
    reader, writer = site.peer().open(b"r", ALL & ~Feature.CREDIT), site.peer(b"w")
    reader.send(wire.StreamRead(b"wild", b""))
    reader.get()
    writer.send(wire.StreamWrite(b"wild"), wire.StreamSend(subject))
    until(lambda: b"wild" not in site.broker.streams())
    assert "delivers what no client can be sent" in caplog.text
    site.healthy()
    reader.send(wire.StreamRead(b"wild", b""))
    while not isinstance(answer := reader.get()[0], Ok):  # once the engine has ended
        assert isinstance(answer, Error)
        reader.send(wire.StreamRead(b"wild", b""))


def test_a_stream_that_cannot_be_made_is_told_and_disturbs_nobody(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(broker_module, "_SOCKETS", 0)  # leaves 16 sockets for the broker and all streams
    site = make()
    peer = site.peer(b"a")
    replies: list[Command] = []
    for n in range(10):
        peer.send(wire.StreamWrite(b"slow%d" % n))
        replies += peer.get()
    refused = [reply for reply in replies if isinstance(reply, Error)]
    assert replies[0] == OK
    assert refused
    assert all(reply.code == 502 and b"Too many open files" in reply.reason for reply in refused)
    assert peer.ask(wire.StreamWrite(b"slow0")) == [OK]


def test_stopping_loses_nothing_that_was_accepted(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.ask(wire.StreamRead(b"slow", b""))
    assert writer.ask(wire.StreamWrite(b"slow"), *[wire.StreamSend(b"%d" % n) for n in range(500)]) == [OK]
    site.broker.stop()
    assert [d.subject for d in reader.get(500) if isinstance(d, wire.StreamDeliver)] == [b"%d" % n for n in range(500)]
