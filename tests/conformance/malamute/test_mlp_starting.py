"""Engines that take their time to start, or never do: their clients wait, all others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mama_spark.malamute.broker.broker import engine_pool, loop
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.broker.engines import register
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.broker.session import streams
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Error, Ok, Pong, StreamDeliver
from mama_spark.testing.waiting import TIMEOUT, until

from tests.support.malamute.mlp import MlpSite, Peer

GATE = threading.Event()


class GatedEngine(SimpleEngine):
    """Starts when the gate is open."""

    def start(self) -> None:
        assert GATE.wait(TIMEOUT)


register("gated-for-tests", GatedEngine)


Connect = Callable[..., Peer]


def ping(peer: Peer) -> None:
    """What was sent before is with the broker, and the broker does not look dead, though an engine starts."""
    assert peer.ask(commands.Ping()) == Pong()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SLOW_START", -1.0)


@pytest.fixture
def connect(site: MlpSite) -> Iterator[Connect]:
    """Peers of one broker, by address; settings of its machine with the first."""
    GATE.clear()
    brokers: list[Broker] = []

    def made(address: bytes, **machine: Any) -> Peer:
        if not brokers:
            brokers.append(site.broker({b"^gated": "gated-for-tests"}, **machine))
        return site.peer(Peer, brokers[0], address)

    yield made
    GATE.set()


@pytest.mark.spec("ML-08", "ML-09")
def test_a_slow_start_holds_its_own_stream_and_nobody_else(connect: Connect) -> None:
    """READ and WRITE of that stream are answered once it is there, all others at once."""
    waiting, other = connect(b"waiting"), connect(b"other")
    waiting.send(commands.StreamRead(b"gated", b""))
    ping(waiting)
    other.send(
        commands.StreamWrite(b"quick"), commands.StreamRead(b"quick", b""), commands.MailboxSend(b"waiting", b"hi")
    )
    assert [other.get(), other.get()] == [Ok(), Ok()]
    assert isinstance(waiting.get(), commands.MailboxDeliver)
    writer = connect(b"writer")
    writer.send(commands.StreamWrite(b"gated"), *(commands.StreamSend(b"%d" % n) for n in range(1000)))
    ping(writer)
    GATE.set()
    assert writer.get() == Ok()
    assert waiting.get() == Ok()
    got = [waiting.get() for _ in range(1000)]
    assert got == [StreamDeliver(b"gated", b"writer", b"%d" % n, []) for n in range(1000)]


def test_an_engine_that_never_starts_is_given_up(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_pool, "START_TIMEOUT", 0.05)
    peer = connect(b"a")
    assert peer.ask(commands.StreamWrite(b"gated")) == Error(502, b"the engine does not start")
    assert "does not start" in caplog.text
    monkeypatch.undo()
    for _ in range(20):  # not one thread more for everybody who tries
        assert peer.ask(commands.StreamWrite(b"gated")) == Error(
            502, b"an engine of the stream that did not start has not ended"
        )
    assert sum(thread.name == "stream-gated" for thread in threading.enumerate()) == 1
    GATE.set()
    until(lambda: peer.ask(commands.StreamWrite(b"gated")) == Ok())  # once it has ended, all is well


@pytest.mark.spec("ML-10")
def test_stopping_while_an_engine_starts_loses_nothing_that_was_accepted(site: MlpSite) -> None:
    """$TERM comes behind all that was said."""
    stored: list[bytes] = []
    GATE.clear()

    class Recording(GatedEngine):
        def accept(self, client: Any, address: bytes, subject: bytes, *more: Any) -> None:
            stored.append(subject)

    register("recording-for-tests", Recording)
    broker = site.broker({b"": "recording-for-tests"})
    peer = site.peer(Peer, broker, b"w")
    peer.send(commands.StreamWrite(b"gated"), *(commands.StreamSend(b"%d" % n) for n in range(50)))
    ping(peer)
    opener = threading.Timer(0.2, GATE.set)
    opener.start()
    broker.stop()
    opener.join()
    assert stored == [b"%d" % n for n in range(50)]


def test_stopping_with_an_engine_that_does_not_end_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, site: MlpSite
) -> None:
    GATE.clear()
    monkeypatch.setattr(loop, "END_TIMEOUT", 0.1)
    broker = site.broker({b"": "gated-for-tests"})
    peer = site.peer(Peer, broker, b"w")
    peer.send(commands.StreamWrite(b"gated"))
    ping(peer)
    broker.stop()  # the engine ends below, when its gate opens
    assert "does not end" in caplog.text
    GATE.set()
    for thread in threading.enumerate():
        if thread.name == "stream-gated":
            thread.join(TIMEOUT)
