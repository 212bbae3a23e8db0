"""A reader that is stopped by the system: the broker, a process of its own, stays as large as its limits say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
import zmq
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, Pong, StreamDeliver
from mama_spark.services.malamute_broker.broker.client_router import ROUND_OCTETS
from mama_spark.services.malamute_broker.session.byte_queue import Overflow
from mama_spark.testing.waiting import TIMEOUT, until

from tests.support.malamute.mlp import Peer
from tests.support.processes import resident_memory

LIMIT = 2_000_000
BODY, COUNT = b"x" * 10_000, 3000
#: Reads a stream and writes down the subjects, without a line of ours: what a user's program is to us.
READER = r"""
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.rcvhwm = 10
socket.connect(sys.argv[1])
socket.send(bytes.fromhex("aaa801084d414c414d555445000107") + b"stopped")
assert socket.recv() == bytes.fromhex("aaa80e00c800")
socket.send(bytes.fromhex("aaa806027374") + b"\0")
assert socket.recv() == bytes.fromhex("aaa80e00c800")
print("ready", flush=True)
subject = b""
while subject != b"end":
    command = socket.recv_multipart()[0]
    if b"w" not in command:
        continue  # a PONG, which brokers send to plain clients unasked
    subject = command[command.rindex(b"w") + 2:]
    print(subject.decode(), flush=True)
"""


class Site:
    def __init__(self, folder: Path, overflow: Overflow, ends: ExitStack) -> None:
        conf = folder / "broker.toml"
        conf.write_text(
            '[broker]\nbind = "tcp://127.0.0.1:*"\nmetrics = "127.0.0.1:0"\nhigh_water = 20\nlinger = 100\n'
            f'[clients]\ntimeout = 0\nqueue = {LIMIT}\noverflow = "{overflow}"\n'
        )
        self.broker = self._start(ends, "-m", "mama_spark.cli", "broker", "--conf-file", str(conf))
        self.endpoint = self._line(self.broker).split()[1].replace("mlp", "tcp")
        self.metrics_url = self._line(self.broker).split()[1].rstrip(",").removesuffix("/metrics")
        self.reader = self._start(ends, "-c", READER, self.endpoint)
        assert self._line(self.reader) == "ready"
        self.context = ends.enter_context(zmq.Context())
        self.peers: list[Peer] = []
        ends.callback(self._close)

    def _close(self) -> None:
        for peer in self.peers:
            peer.socket.close(0)

    @staticmethod
    def _start(ends: ExitStack, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

        def end() -> None:
            process.kill()
            process.wait(TIMEOUT)
            assert process.stdout is not None
            process.stdout.close()

        ends.callback(end)
        return process

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def peer(self, address: bytes) -> Peer:
        self.peers.append(Peer(self.context, self.endpoint).open(address))
        return self.peers[-1]

    def page(self, path: str) -> bytes:
        with urllib.request.urlopen(self.metrics_url + path, timeout=TIMEOUT) as answer:
            found: bytes = answer.read()
        return found

    def clients(self) -> dict[str, Any]:
        return {one["address"]: one for one in orjson.loads(self.page("/clients"))}

    def resident(self) -> int:
        return resident_memory(self.broker.pid)

    def heard(self) -> list[str]:
        """All that the reader writes down until it ends."""
        found = []
        while line := self._line(self.reader):
            found.append(line)
        return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[Overflow], Site]]:
    with ExitStack() as ends:
        yield lambda overflow: Site(tmp_path, overflow, ends)


@pytest.mark.parametrize(
    "overflow",
    [Overflow.DROP_OLDEST, *(pytest.param(one, marks=pytest.mark.explore) for one in Overflow if "oldest" not in one)],
)
def test_a_stopped_reader_costs_its_limit_and_disturbs_nobody(
    make: Callable[[Overflow], Site], overflow: Overflow
) -> None:
    """The reference grows by 1.1 KB a message of 100 octets until the reader expires. What each policy keeps is shown
    with a reader in this process; here, that what the broker costs is bounded."""
    site = make(overflow)
    writer, other = site.peer(b"w"), site.peer(b"other")
    assert other.ask(commands.StreamRead(b"st", b"")) == Ok()
    assert writer.ask(commands.StreamWrite(b"st")) == Ok()
    before = site.resident()
    os.kill(site.reader.pid, signal.SIGSTOP)
    for n in range(COUNT):
        writer.send(commands.StreamSend(b"%d" % n, [BODY]))
        if n % 100 == 99:
            for k in range(n - 99, n + 1):
                while (one := other.get()) == Pong():
                    pass  # brokers send it to plain clients unasked
                assert isinstance(one, StreamDeliver)
                assert one.subject == b"%d" % k, "others get everything meanwhile"
    assert writer.ask(commands.Ping()) == Pong()
    assert site.resident() - before < COUNT * len(BODY) / 2, "and not what was published"
    assert b"malamute_lost_deliveries_total 0\n" not in site.page("/metrics")
    if overflow is Overflow.DISCONNECT:
        assert "stopped" not in site.clients()
        os.kill(site.reader.pid, signal.SIGCONT)
        return
    stopped = site.clients()["stopped"]
    assert stopped["blocked"]
    assert 0 < stopped["queued_octets"] <= LIMIT + ROUND_OCTETS, "and what a round had for it already"
    os.kill(site.reader.pid, signal.SIGCONT)
    until(lambda: site.clients()["stopped"]["queued"] == 0)
    writer.send(commands.StreamSend(b"end"))
    heard = site.heard()
    assert heard.pop() == "end"
    numbers = [int(n) for n in heard]
    assert numbers == sorted(set(numbers)), "in order, nothing twice"
    assert len(numbers) < COUNT
    kept = LIMIT // (len(BODY) + 350)
    if overflow is Overflow.DROP_NEWEST:
        assert numbers[:kept] == list(range(kept)), "the oldest are kept"
    else:
        assert numbers[-kept:] == list(range(COUNT - kept, COUNT)), "the newest are kept"
