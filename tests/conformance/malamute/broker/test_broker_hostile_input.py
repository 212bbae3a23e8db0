"""The broker over TCP: the inputs that are fatal to the reference, and any others."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import encode
from mama_spark.malamute.protocol.extensions import ALL, Extension, write
from mama_spark.malamute.protocol.log_query import LogQuery, Op

from tests.support.malamute.mlp import Peer
from tests.support.malamute.raw_malamute_clients import Make
from tests.support.tiers import EXPLORE
from tests.support.vectors import vectors


def test_bad_input_is_survived(make: Make) -> None:
    """What each is answered is shown with the machine alone."""
    site = make()
    for vector in [v for v in vectors("malamute") if v["kind"] == "bad"]:
        peer = site.peer(b"bad" if vector.get("state") == "connected" else None)
        peer.socket.send_multipart([bytes.fromhex(h) for h in vector["hex"]])
    site.healthy()


def test_a_req_socket_is_ignored(make: Make) -> None:
    site = make()
    site.peer(kind=zmq.REQ).socket.send(b"\xaa\xa8\x02")
    site.healthy()
    assert site.broker.counters()["malformed"] == 1


def beside(chance: random.Random) -> bytes:
    """What our own clients say behind the last field, or what it may have become on its way."""
    question = LogQuery(chance.choice(list(Op)[1:]), chance.randrange(99), chance.choice([b"kept", b"a"]), ())
    numbers = {Op.AT: (5,), Op.TRIM: (9,), Op.MISSING: (1, 9**9), Op.MATCH: (1, 9**9, 5)}.get(question.op, (0, 9, 9, 9))
    question = replace(question, numbers=() if question.op is Op.BOUNDS else numbers)
    block = write(
        chance.choice(
            [
                Extension(features=ALL),
                Extension(question=question.pack()),
                Extension(block=chance.choice([0, 1, 2, 9999])),
                Extension(after=chance.choice([0, 1, 2**63])),
                Extension(message_id=b"%d" % chance.randrange(9), headers=((b"k", b"v"),)),
                Extension(
                    headers=(
                        (
                            chance.choice([b"Mama-Ttl", b"Mama-Renewal", b"Mama-Marker", b"Mama-Expected-Sequence"]),
                            b"20",
                        ),
                    )
                ),
            ]
        )
    )
    if chance.random() < 0.3:
        changed = bytearray(block)
        changed[chance.randrange(len(changed))] = chance.randrange(256)
        block = bytes(changed)[: chance.randint(1, len(changed))]
    return block


def noise(chance: random.Random) -> list[bytes]:
    """A valid command, one of ours, a mutated one, or anything."""
    names = [b"", b"a", b"fuzz", b"kept", b"_MAMA_EVENTS", b".*", b"(", b"x" * 255]
    cls = wire.COMMANDS[chance.randint(1, 18)]
    kinds: dict[str, list[Any]] = {"s": names, "2": [0, 1, 300, 65535], "4": [0, 1, 99]}
    values: dict[str, Any] = {name: chance.choice(kinds[kind]) for name, kind in cls.layout}
    frames = encode(cls(**values))
    if chance.random() < 0.4:
        frames[0] += beside(chance)
    if cls.has_content and chance.random() < 0.1:  # a block
        sends = [encode(wire.StreamSend(chance.choice(names), [b"x"])) for _ in range(2)]
        frames += [
            struct.pack(">4I", *(len(one) for two in zip(*sends, strict=True) for one in two)),
            *map(b"".join, zip(*sends, strict=True)),
        ]
    elif cls.has_content:
        frames += [chance.randbytes(chance.randrange(50)) for _ in range(chance.randrange(3))]
    way = chance.random()
    if way < 0.3 and frames[0]:
        frame = bytearray(frames[0])
        frame[chance.randrange(len(frame))] = chance.randrange(256)
        frames[0] = bytes(frame)[: chance.randint(1, len(frame))]
    elif way < 0.4:
        frames = [chance.randbytes(chance.randrange(40)) for _ in range(chance.randint(1, 4))]
    return frames


@pytest.mark.parametrize("count", [20_000 if EXPLORE else 2_000, pytest.param(1_000_000, marks=pytest.mark.explore)])
def test_any_frames_leave_the_broker_as_it_was(make: Make, tmp_path: Path, count: int) -> None:
    site = make(folder=tmp_path, timeout=10.0, streams=20, patterns=20)
    site.healthy()  # makes its stream, before the noise has made as many as there may be
    chance = random.Random(7)
    peers: list[Peer] = []
    for n in range(count):
        if n % (count // 20) == 0:  # others come
            peers = [site.peer(b"fuzz%d" % k) for k in range(3)]
        peer = chance.choice(peers)
        peer.socket.send_multipart(noise(chance))
        if n % 100 == 0:
            site.clock.ahead += 1.0  # some expire meanwhile
            while peer.socket.poll(0):
                peer.socket.recv_multipart()
    probe = site.peer(b"probe")
    assert probe.until_pong() == []
    machine = site.broker._loop.machine if site.broker._loop else None
    assert machine is not None
    assert len(machine.streams) <= 20
    site.until_nobody_is_left()
    site.healthy()
