"""Plain clients that are busy get PONGs that they have not asked for, and so lose nothing.

The PING of the original C client waits behind its messages. After 4 s without input it counts itself disconnected:
it then discards what is delivered to it until the next PONG, and throws away what it has not sent if it is destroyed.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command
from mama_spark.malamute.protocol.extensions import Feature

from tests.support.malamute.session_machine import OK, PONG, MachineHarness
from tests.support.tables import each

STEP = 0.1
MAIL = wire.MailboxSend(b"other", b"a")


def pongs(desk: MachineHarness, client: str = "c", command: Command = MAIL, seconds: float = 5.0) -> list[float]:
    """When the client is sent PONG while it says this all the time; it is sent nothing else."""
    desk.machine.clients.take_output()
    found: list[float] = []
    for _ in range(round(seconds / STEP)):
        desk.expire(STEP)
        told = desk.send(client, command)
        assert told in ([], [PONG])
        found += [desk.now] * len(told)
    return found


@each("command", [wire.StreamSend(b"a"), MAIL, wire.ServiceSend(b"elsewhere", b"a")])
def test_pongs_to_a_busy_client_are_at_most_one_a_second_and_in_time_for_the_c_client(command: Command) -> None:
    desk = MachineHarness(timeout=10.0)
    desk.open("c")
    desk.send("c", wire.StreamRead(b"in", b""), wire.StreamWrite(b"s"))
    found = pongs(desk, command=command, seconds=10.0)
    assert all(later - earlier >= 0.999 for earlier, later in pairwise(found))
    assert all(later - earlier <= 1.7 for earlier, later in zip([0.0, *found], found, strict=False))
    assert len(found) >= 6


def test_a_client_that_pings_is_sent_its_answers_only() -> None:
    desk = MachineHarness(timeout=10.0)
    desk.open("c")
    for second in range(10):
        assert pongs(desk, seconds=0.9) == [], second
        assert desk.send("c", wire.Ping()) == [PONG]


def test_a_client_that_announced_extensions_gets_no_pong_that_it_did_not_ask_for() -> None:
    """To it, PONG says that the broker has what was sent before PING."""
    desk = MachineHarness(timeout=0.0)
    desk.open("ours", features=Feature(0))
    desk.open("c")
    assert pongs(desk, "ours") == []
    assert len(pongs(desk)) >= 3


def test_while_nobody_is_read_plain_clients_get_pongs() -> None:
    desk = MachineHarness(timeout=10.0)
    desk.open("c")
    for _ in range(100):  # as the broker does while it waits for an engine
        desk.machine.clients.excuse_silence(STEP)
        desk.expire(STEP)
    assert 6 <= len(desk.received.pop(b"c")) <= 10


def test_with_a_silence_of_0_nobody_gets_a_pong_that_it_did_not_ask_for() -> None:
    desk = MachineHarness(timeout=0.0, pong_silence=0.0)
    desk.open("c")
    assert pongs(desk) == []


def test_a_client_whose_socket_takes_no_more_gets_none_until_it_does() -> None:
    desk = MachineHarness(timeout=0.0)
    desk.open("c")
    client = desk.machine.clients.by_identity[b"c"]
    client.blocked = True
    assert pongs(desk) == []
    assert not len(client.replies)
    client.blocked = False
    assert len(pongs(desk)) >= 3


@pytest.mark.parametrize(("sends", "unclosed"), [(True, 1), (False, 0)], ids=["sender", "reader"])
def test_a_client_that_sent_and_goes_without_close_is_counted(sends: bool, unclosed: int) -> None:
    desk = MachineHarness(timeout=10.0)
    for name in ("silent", "replaced", "orderly"):
        desk.open(name)
        desk.send(name, wire.MailboxSend(b"x", b"", b"", 0) if sends else wire.StreamRead(b"s", b""))
    assert desk.send("orderly", wire.Close()) == [OK]
    desk.open("again", "replaced")
    assert desk.machine.clients.counters.unclosed == unclosed
    desk.expire(11.0)
    assert desk.machine.clients.counters.unclosed == 2 * unclosed
