"""Every cut and every flipped bit of every recorded frame, through every decoder: read, or refused by its own error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.mama.messages import omnm
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.mama.messages.typed_columns import TypedField
from mama_spark.openmama.recorder.frame_recorder import FrameRecorder
from mama_spark.openmama.rows import TYPE
from mama_spark.openmama.rows.openmama_rows import OpenMamaColumns
from mama_spark.openmama.wire.dictionary import dictionary_of
from mama_spark.openmama.wire.frame_filter import FrameFilter, PeerCounters
from mama_spark.openmama.wire.frames import OZ, ZMQ, Framing
from mama_spark.openmama.wire.market_data import read_request
from mama_spark.openmama.wire.naming import NamingFrame, decode_naming
from mama_spark.openmama.wire.naming_client import NamingClient
from mama_spark.openmama.wire.subscriptions import OpenInboxes, SubscriptionTable

from tests.support.hostile_frames import hostile_frames
from tests.support.memory import peak_of
from tests.support.vectors import vectors

VECTORS = vectors("openmama-wire")
FRAMES = [bytes.fromhex(v["hex"]) for v in VECTORS]
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


DECODERS: list[Callable[[bytes], object]] = [read_whole(OZ), read_whole(ZMQ), decode_naming, omnm.decode]


def read_all(data: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(BadMessage):
            decode(data)


class Attacked:
    """Every decoder, for as long as a test lasts: one by one, and in columns as a recorder and Spark read batches."""

    def __init__(self) -> None:
        self._naming, self._table = NamingClient(ME), SubscriptionTable(most=1000)
        self._received = [(a_filter(framing), FrameRecorder("mama", framing.name)) for framing in (OZ, ZMQ)]
        self._columns = OpenMamaColumns(TYPE)
        self._typed = OpenMamaColumns(TYPE, [TypedField("wBidPrice", pa.float64()), TypedField("wText", pa.string())])

    def read(self, frames: list[bytes], now: float) -> None:
        for data in frames:
            read_all(data)
            self._naming.received(data, now)
            self._table.apply(data)
        for filtered, recorder in self._received:
            one_by_one = [found for found in map(filtered.accepted, frames) if found is not None]
            accepted = filtered.columns(frames)
            assert accepted.raws == [found.raw for found in one_by_one]
            made = recorder.records(accepted, {}, 0)
            topics, payloads = made.topics.to_pylist(), made.payloads.to_pylist()
            cut = [payload[: 1 + at % (len(payload) + 1)] for at, payload in enumerate(payloads)]
            self._read_in_columns(topics + topics, payloads + cut)
        self._read_in_columns(["mama.x"] * len(frames), frames)

    def _read_in_columns(self, topics: list[str], payloads: list[bytes]) -> None:
        for columns in (self._columns, self._typed):
            columns.columns(pa.array(payloads, pa.binary()), pa.array(topics), np.arange(len(payloads)))


def read_hostile_frames() -> None:
    chance, attacked = np.random.default_rng(20), Attacked()
    for turn in range(4):
        attacked.read(hostile_frames(FRAMES, chance, 250), float(turn))


@pytest.mark.spec("OW5")
def test_hostile_frames_take_no_memory() -> None:
    assert max(peak_of(read_hostile_frames)) < 4 << 20, "0.5 MB; gigabytes are announced"
