"""Every cut and every flipped bit of every recorded frame, through every decoder: read, or refused by its own error."""

from __future__ import annotations

import contextlib
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.mama.messages import omnm
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.openmama_wire.peer.frame_filter import FrameFilter, PeerCounters
from mama_spark.openmama_wire.peer.inboxes import OpenInboxes
from mama_spark.openmama_wire.peer.naming_client import NamingClient
from mama_spark.openmama_wire.peer.subscription_table import SubscriptionTable
from mama_spark.openmama_wire.protocol.dictionary import dictionary_of
from mama_spark.openmama_wire.protocol.framings import OZ, ZMQ, Framing
from mama_spark.openmama_wire.protocol.market_data import read_request
from mama_spark.openmama_wire.protocol.naming import NamingFrame, decode_naming
from mama_spark.services.openmama_recorder.frame_recorder import FrameRecorder
from mama_spark.spark.subscribe.openmama_rows import OpenMamaColumns
from mama_spark.spark.subscribe.openmama_schema import TYPE

from tests.support.examples import FULL

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "openmama-wire.json").read_text()
)  # fmt: skip
ME = NamingFrame("C", "me", "host", 1, "my-uuid", "tcp://127.0.0.1:1000")


def read_whole(framing: Framing) -> Callable[[bytes], object]:
    """As a peer reads: frame, message, request, dictionary."""

    def read(data: bytes) -> object:
        msg = omnm.decode(framing.decode(data).payload)
        return read_request(msg), dictionary_of(msg)

    return read


def a_filter(framing: Framing) -> FrameFilter:
    """Of a peer that subscribed to everything."""
    inboxes = OpenInboxes(framing, "01234567-89ab-cdef-0123-456789abcdef")
    inboxes.open()
    filtered = FrameFilter(framing, inboxes, PeerCounters())
    filtered.add("", prefix=True)
    return filtered


def recorded(framing: Framing) -> Callable[[bytes], object]:
    """As a recorder stores what it received, and as Spark reads it: columns of fields, and what they lack."""
    filtered, recorder = a_filter(framing), FrameRecorder("mama", framing.name)

    def read(data: bytes) -> object:
        frames = [found for found in (filtered.accepted(data),) if found is not None] * 3
        if not frames:
            return None
        made = recorder.records(frames, [None] * len(frames), 0)
        columns = OpenMamaColumns(TYPE)
        payloads = pa.array([*made.payloads, data, made.payloads[0][: len(data)]], pa.binary())
        topics = pa.array([*made.topics, "mama.x", "mama.x"])
        return columns.columns(payloads, topics, np.arange(len(payloads)))

    return read


DECODERS: list[Callable[[bytes], object]] = [read_whole(OZ), read_whole(ZMQ), decode_naming, omnm.decode]
IN_COLUMNS = [recorded(OZ), recorded(ZMQ)]


def read_all(data: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(BadMessage):
            decode(data)


@pytest.mark.spec("OW5")
@pytest.mark.parametrize("v", VECTORS, ids=lambda v: v["name"])
def test_every_cut_and_every_flipped_bit(v: dict[str, Any]) -> None:
    data = bytearray.fromhex(v["hex"])
    step = 1 if FULL or len(data) < 400 else 7
    for n in range(0, len(data), step):
        read_all(bytes(data[:n]))
    for bit in range(0, 8 * len(data), step):
        data[bit // 8] ^= 1 << bit % 8
        read_all(bytes(data))
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.spec("OW5")
@pytest.mark.parametrize("v", VECTORS, ids=lambda v: v["name"])
def test_every_cut_and_some_flipped_bits_are_recorded_and_read_in_columns(v: dict[str, Any]) -> None:
    """All of them in ``make test-slow``, where the frame is short."""
    data = bytearray.fromhex(v["hex"])
    every = FULL and len(data) < 1000
    for n in range(0, len(data), 1 if every else 37):
        for read in IN_COLUMNS:
            read(bytes(data[:n]))
    for bit in range(0, 8 * len(data), 1 if every else 401):
        data[bit // 8] ^= 1 << bit % 8
        for read in IN_COLUMNS:
            read(bytes(data))
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.spec("OW5")
@pytest.mark.timeout(7200)  # of a million with their memory traced
def test_hostile_frames_take_no_memory() -> None:
    """A million of them in ``make test-slow``."""
    chance = random.Random(20)
    frames = [bytes.fromhex(v["hex"]) for v in VECTORS]
    naming, table = NamingClient(ME), SubscriptionTable(most=1000)

    def attack(n: int) -> None:
        for i in range(n):
            data = bytearray(chance.choice(frames))
            for _ in range(chance.randrange(1, 8)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            read_all(bytes(data[: chance.randrange(len(data) + 1)] if i % 3 == 0 else data))
            naming.received(bytes(data), i / 1000)
            table.apply(bytes(data))

    attack(2_000)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    attack(1_000_000 if FULL else 4_000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 16 << 20
