"""The broker's own stream: what happens to its clients and streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mama_spark.malamute.broker.broker import loop
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.broker.engines import register
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.broker.session.broker_events import BrokerEvent
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Error, Ok, Pong, StreamDeliver
from mama_spark.malamute.protocol.extensions import Extension, Feature, write
from mama_spark.testing.waiting import TIMEOUT

from tests.support.malamute.mlp import MlpSite, Peer

GATE = threading.Event()


class SluggishEngine(SimpleEngine):
    def flush(self) -> None:
        assert GATE.wait(TIMEOUT)


class StoredBrokenEngine(SimpleEngine):
    stored = True

    def flush(self) -> None:
        raise OSError("disk full")


register("sluggish-for-tests", SluggishEngine)
register("stored-broken-for-tests", StoredBrokenEngine)


class Watcher(Peer):
    def event(self) -> dict[str, Any]:
        command = self.get()
        assert isinstance(command, StreamDeliver)
        assert command.sender == b""
        found: dict[str, Any] = json.loads(command.content[0])
        subject = command.subject.decode("utf-8", "backslashreplace")
        assert subject == found["kind"] + "." + (found["stream"] or found["client"])
        return found

    def told(self) -> tuple[str, str, str, str]:
        found = self.event()
        return found["kind"], found["client"], found["stream"], found["detail"]


Connect = Callable[..., Watcher]


Make = Callable[..., tuple[Broker, Connect]]


@pytest.fixture
def make(site: MlpSite) -> Iterator[Make]:
    def made(events_engine: str | tuple[str, dict[str, str]] = "simple", **values: Any) -> tuple[Broker, Connect]:
        broker = site.broker({b"^_MAMA_EVENTS$": events_engine, b"^broken$": "stored-broken-for-tests"}, **values)
        return broker, lambda address, features=None: site.peer(Watcher, broker, address, features)

    yield made
    GATE.set()


def watched(made: tuple[Broker, Connect], pattern: bytes) -> tuple[Connect, Watcher]:
    watcher = made[1](b"watcher")
    assert watcher.ask(commands.StreamRead(b"_MAMA_EVENTS", pattern)) == Ok()
    return made[1], watcher


def test_clients_coming_and_going_writing_reading_and_failing_are_told(make: Make) -> None:
    """CONNECTED, WRITING, SUBSCRIBED, REFUSED, UNSUBSCRIBED, STOPPED, GONE in order."""
    connect, watcher = watched(make(), b"")
    peer = connect(b"p\xff")
    for command in (commands.StreamWrite(b"out"), commands.StreamRead(b"in", b"^a"), commands.StreamCancel(b"in")):
        assert peer.ask(command) == Ok()
    assert isinstance(peer.ask(commands.StreamRead(b"in", b"[")), Error)
    assert peer.ask(commands.Close()) == Ok()
    events = [watcher.event()]
    while events[-1]["kind"] != "GONE":
        events.append(watcher.event())
    told = [(e["kind"], e["stream"], e["detail"]) for e in events if e["client"] == "p\\xff"]
    refusal = next(e["detail"] for e in events if e["kind"] == "REFUSED")
    assert "pattern" in refusal
    assert told == [
        ("CONNECTED", "", ""), ("WRITING", "out", ""), ("SUBSCRIBED", "in", "^a"), ("UNSUBSCRIBED", "in", ""),
        ("REFUSED", "in", refusal), ("STOPPED", "out", ""), ("GONE", "", "close"),
    ]  # fmt: skip
    times = [e["time"] for e in events]
    assert times == sorted(times)


def test_who_announced_discovery_may_write_there_where_it_is_kept_and_is_not_told_of(make: Make, tmp_path: Any) -> None:
    announced = Feature.DISCOVERY | Feature.SEQUENCE
    _, plain = make()
    assert isinstance(plain(b"p", announced).ask(commands.StreamWrite(b"_MAMA_EVENTS")), Error), "it is not kept"
    _, connect = make(("durable", {"folder": str(tmp_path)}))
    peer = connect(b"quiet", announced)
    assert peer.ask(commands.StreamWrite(b"_MAMA_EVENTS")) == Ok()
    peer.send(commands.StreamSend(b"_mine", [b"x"]), commands.StreamSend(b"GONE.lie", [b"x"]))
    assert peer.get() == Error(300, b"such subjects are the broker's own")
    assert isinstance(peer.ask(commands.Ping()), Error), "it was dropped"
    late = connect(b"late", Feature.SEQUENCE)
    assert late.ask(commands.StreamRead(b"_MAMA_EVENTS", b"", write(Extension(after=0)))) == Ok()
    first = late.get()
    assert isinstance(first, StreamDeliver)
    assert first.subject == b"_mine"
    assert late.told()[:2] == ("CONNECTED", "late")


def test_clients_cannot_write_to_it(make: Make) -> None:
    _, connect = make()
    peer = connect(b"p")
    assert peer.ask(commands.StreamWrite(b"_MAMA_EVENTS")) == Error(300, b"the stream is the broker's own")
    assert peer.ask(commands.Ping()) == Pong(), "and are kept"


def test_its_name_is_a_setting_and_empty_is_none(make: Make) -> None:
    _, connect = make(events=b"happenings")
    watcher = connect(b"watcher")
    assert watcher.ask(commands.StreamRead(b"happenings", b"^CONNECTED")) == Ok()
    connect(b"p")
    assert watcher.told() == ("CONNECTED", "p", "", "")
    assert watcher.ask(commands.StreamWrite(b"_MAMA_EVENTS")) == Ok()
    broker, connect = make(events=b"")
    assert connect(b"p").ask(commands.StreamRead(b"x", b"")) == Ok()
    assert broker.streams() == [b"x"]


def test_messages_are_made_by_the_encoder_that_is_given_and_one_that_fails_stops_nobody(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def mine(event: BrokerEvent) -> bytes:
        if event.client == b"bad":
            raise ValueError("cannot say this")
        return b"mine:" + event.client

    connect, watcher = watched(make(encode=mine), b"^CONNECTED")
    connect(b"bad")
    connect(b"good")
    assert watcher.get() == StreamDeliver(b"_MAMA_EVENTS", b"", b"CONNECTED.good", [b"mine:good"])
    assert "cannot say this" in caplog.text


def test_a_stream_of_events_that_is_behind_holds_up_nobody_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.setattr(loop, "MAX_LAG", 4)
    GATE.set()
    connect, watcher = watched(make("sluggish-for-tests"), b"")
    assert watcher.told()[:2] == ("SUBSCRIBED", "watcher")
    GATE.clear()
    peer = connect(b"p")
    for n in range(50):
        assert peer.ask(commands.StreamRead(b"s", b"%d" % n)) == Ok()
    GATE.set()
    told: list[tuple[str, str, str, str]] = []
    n = 50
    while not told or told[-1][0] != "EVENTS_LOST":
        assert peer.ask(commands.StreamRead(b"s", b"%d" % n)) == Ok()  # the loss is told before the next event
        n += 1
        told.append(watcher.told())
    assert int(told[-1][3]) > 0


def test_a_stream_of_events_whose_engine_fails_disturbs_nobody(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    _, connect = make("stored-broken-for-tests")
    peer = connect(b"p")
    assert peer.ask(commands.StreamWrite(b"s")) == Ok()
    assert peer.ask(commands.StreamRead(b"s", b"")) == Ok()
    assert peer.ask(commands.Ping()) == Pong()


def test_an_engine_that_fails_is_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    connect, watcher = watched(make(), b"^STREAM_LOST")
    peer = connect(b"p")
    assert peer.ask(commands.StreamRead(b"broken", b"")) == Error(502, b"disk full")
    assert peer.ask(commands.Ping()) == Pong()
    assert watcher.told() == ("STREAM_LOST", "", "broken", "disk full")
