"""Plain clients that are busy get PONGs that they have not asked for, and so lose nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Ok, encode
from mama_spark.malamute.protocol.extensions import Feature

from tests.support.malamute.c_client import CLOSE, OK, OPEN, PING, PONG, ScriptedCClient
from tests.support.malamute.session_machine import MachineHarness
from tests.support.tables import each

STEP = 0.1
WRITE, SEND = encode(wire.StreamWrite(b"s"))[0], encode(wire.StreamSend(b"a"))[0]
OFFER = encode(wire.ServiceOffer(b"work", b"."))[0]
MAIL = encode(wire.MailboxSend(b"other", b"a", b"", 0))[0]
REQUEST = encode(wire.ServiceSend(b"elsewhere", b"a", b"", 0))[0]


class SlowBroker:
    """A machine that reads only so many frames of the client in each step of simulated time."""

    def __init__(self, frames_per_step: int) -> None:
        self.desk = MachineHarness(timeout=10.0)
        self.client = ScriptedCClient()
        self.now = 0.0
        self.read: list[list[bytes]] = []
        self._frames_per_step = frames_per_step

    def step(self) -> None:
        self.now += STEP
        self.desk.now = self.now
        for _ in range(min(self._frames_per_step, len(self.client.pipe))):
            frames = self.client.pipe.popleft()
            self.read.append(frames)
            self.desk.feed("c", frames)
        self.desk.expire(0.0)
        for frames in self.desk.received.pop(b"c", []):
            self.client.receive(frames, self.now)
        self.client.pass_time(self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.step()


@each(
    "message",
    [
        pytest.param(SEND, id="producer"),
        pytest.param(MAIL, id="mail"),
        pytest.param(REQUEST, id="requests"),
    ],
)
def test_all_that_a_c_client_has_sent_before_it_ends_arrives(message: bytes) -> None:
    broker = SlowBroker(20)
    client = broker.client
    client.send(OPEN)
    client.send(WRITE)
    for number in range(2000):
        client.send(message, b"%d" % number)
    broker.run(5.0)  # its PING is behind 1,000 messages
    client.destroy()
    broker.run(20.0)
    assert [frames[1] for frames in broker.read if frames[0] == message] == [b"%d" % n for n in range(2000)]
    assert broker.read[-1] == [CLOSE]
    assert client.ended
    assert broker.desk.machine.clients.counters.unclosed == 0


@pytest.mark.parametrize("offer", [None, OFFER], ids=["consumer", "worker"])
def test_a_busy_c_client_discards_nothing_that_is_delivered_to_it(offer: bytes | None) -> None:
    """It reads, or works, and answers by mail as fast as it can."""
    broker = SlowBroker(20)
    client, desk = broker.client, broker.desk
    client.send(OPEN)
    client.send(offer or encode(wire.StreamRead(b"in", b""))[0])
    for _ in range(4000):
        client.send(MAIL, b"an answer")
    broker.run(6.0)  # after the first delivery it heard nothing for long
    desk.open("w")
    desk.send("w", wire.StreamWrite(b"in"))
    desk.send("w", wire.StreamSend(b"x", [b"1"]) if offer is None else wire.ServiceSend(b"work", b"x", b"", 0, [b"1"]))
    broker.run(1.0)
    assert [frames[1] for frames in client.taken] == [b"1"]
    assert client.discarded == 0


def test_pongs_are_at_most_one_a_second_and_have_no_extension() -> None:
    broker = SlowBroker(20)
    broker.client.send(OPEN)
    for _ in range(4000):
        broker.client.send(MAIL)
    pongs = []
    for _ in range(100):
        before = broker.client.pongs
        broker.step()
        pongs += [broker.now] * (broker.client.pongs - before)
    assert all(later - earlier >= 0.999 for earlier, later in pairwise(pongs))
    assert all(later - earlier <= 1.7 for earlier, later in zip([0.0, *pongs], pongs, strict=False))
    assert len(pongs) >= 6


def test_a_client_that_pings_is_sent_its_answers_only() -> None:
    broker = SlowBroker(20)
    broker.client.send(OPEN)
    broker.run(10.0)
    assert broker.client.pongs == broker.read.count([PING]) > 8


def test_a_client_that_announced_extensions_gets_no_pong_that_it_did_not_ask_for() -> None:
    desk = MachineHarness(timeout=0.0)
    desk.open("ours", features=Feature(0))  # to it, PONG says that the broker has what was sent before PING
    desk.open("c")
    desk.send("ours", wire.StreamWrite(b"s"))
    desk.send("c", wire.StreamWrite(b"s"))
    for _ in range(50):
        desk.expire(STEP)
        desk.feed("ours", encode(wire.StreamSend(b"a")))
        desk.feed("c", encode(wire.StreamSend(b"a")))
    assert desk.got("ours") == []
    assert len(desk.got("c")) >= 3


def test_while_nobody_is_read_plain_clients_get_pongs() -> None:
    desk = MachineHarness(timeout=10.0)
    desk.open("c")
    for _ in range(100):  # as the broker does while it waits for an engine
        desk.machine.clients.excuse_silence(STEP)
        desk.expire(STEP)
    assert 6 <= len(desk.received.pop(b"c")) <= 10


def _pongs_while_it_sends(desk: MachineHarness) -> int:
    desk.machine.clients.take_output()
    for _ in range(50):
        desk.expire(STEP)
        desk.feed("c", encode(wire.StreamSend(b"a")))
    return len(desk.got("c"))


def test_with_a_silence_of_0_nobody_gets_a_pong_that_it_did_not_ask_for() -> None:
    desk = MachineHarness(timeout=0.0, pong_silence=0.0)
    desk.open("c")
    desk.send("c", wire.StreamWrite(b"s"))
    assert _pongs_while_it_sends(desk) == 0


def test_a_client_whose_socket_takes_no_more_gets_none_until_it_does() -> None:
    desk = MachineHarness(timeout=0.0)
    desk.open("c")
    desk.send("c", wire.StreamWrite(b"s"))
    client = desk.machine.clients.by_identity[b"c"]
    client.blocked = True
    assert _pongs_while_it_sends(desk) == 0
    assert not len(client.replies)
    client.blocked = False
    assert _pongs_while_it_sends(desk) >= 3


@pytest.mark.parametrize(("sends", "unclosed"), [(True, 1), (False, 0)], ids=["sender", "reader"])
def test_a_client_that_sent_and_goes_without_close_is_counted(sends: bool, unclosed: int) -> None:
    desk = MachineHarness(timeout=10.0)
    for name in ("silent", "replaced", "orderly"):
        desk.open(name)
        desk.send(name, wire.MailboxSend(b"x", b"", b"", 0) if sends else wire.StreamRead(b"s", b""))
    assert desk.send("orderly", wire.Close()) == [Ok()]
    desk.open("again", "replaced")
    assert desk.machine.clients.counters.unclosed == unclosed
    desk.expire(11.0)
    assert desk.machine.clients.counters.unclosed == 2 * unclosed


def test_frames_of_the_scripted_client_are_those_of_the_protocol() -> None:
    assert tuple(
        encode(command) for command in (wire.Open(b"c"), wire.Ping(), wire.Pong(), wire.Close(), wire.Ok())
    ) == ([OPEN], [PING], [PONG], [CLOSE], [OK])
