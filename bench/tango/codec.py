"""How fast events of Tango are read and written, in memory: the part ``codec`` of :mod:`bench.tango`.

Events of one number each, in batches, as new objects every time (bytes that were hashed before are looked up faster).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from mama_spark.tango.events.batch_decoder import BatchDecoder
from mama_spark.tango.events.event_codec import decode
from mama_spark.tango.events.frame_layout import ScalarEncoder
from mama_spark.tango.events.sequence_tracker import SequenceTracker
from mama_spark.tango.topics import parse
from mama_spark.tango.types import DataType, Quality

BATCH = 20_000
NOW = 1_700_000_000_123_456_789
KINDS = [DataType.DOUBLE, DataType.LONG, DataType.FLOAT, DataType.LONG64]
Columns = list[list[bytes]]


class Codec:
    """:param batches: of each run"""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._decoder = BatchDecoder()
        one, many = encoders(1), encoders(1000)
        self._encoder = one[0]
        self._one, self._many = events(one), events(many)

    def ways(self) -> dict[str, Callable[[], tuple[int, float]]]:
        """name -> a run, which tells its events and its seconds."""
        return {
            "decode": lambda: self._run(self._decode, self._one),
            "decode-many": lambda: self._run(self._decode, self._many),
            "decode-count": lambda: self._run(self._count, self._many),
            "decode-single": lambda: self._run(_decode_single, self._one, 1),
            "encode": lambda: self._run(self._encode, []),
            "encode-single": lambda: self._run(self._encode_single, [], 1),
        }

    def _run(self, work: Callable[[Columns], int], columns: Columns, batches: int = 0) -> tuple[int, float]:
        done, seconds = 0, 0.0
        for _ in range(batches or self._batches):
            fresh = [[bytes(bytearray(frame)) for frame in column] for column in columns]
            begin = time.perf_counter()
            done += work(fresh)
            seconds += time.perf_counter() - begin
        return done, seconds

    def _decode(self, columns: Columns) -> int:
        found = self._decoder.decode(*columns)
        return sum(len(group.rows) for group in found.scalars)

    def _count(self, columns: Columns) -> int:
        """Decode, and look at every counter."""
        found = BatchDecoder().decode(*columns)
        see = SequenceTracker().track
        rows = zip(columns[0], found.ctr.tolist(), columns[2], columns[3], strict=True)
        return sum(see(topic, ctr, call, data).marker is None for topic, ctr, call, data in rows)

    def _encode(self, _: Columns) -> int:
        times, qualities = np.arange(NOW, NOW + BATCH), np.zeros(BATCH, np.int8)
        name = np.frombuffer(self._encoder.name.encode(), np.uint8)
        read = np.arange(BATCH, dtype=np.float64)
        return len(self._encoder.layout.encode(name, self._encoder.data_type, times, qualities, read))

    def _encode_single(self, _: Columns) -> int:
        return sum(len(self._encoder.frames(n, NOW, Quality.VALID, 2.5)) == 4 for n in range(BATCH))


def _decode_single(columns: Columns) -> int:
    return sum(decode(frames).topic is not None for frames in zip(*columns, strict=True))


def encoders(count: int) -> list[ScalarEncoder]:
    """Attributes with names of ten lengths and values of four types."""
    made = []
    for n in range(count):
        name = f"attribute{'x' * (n % 10)}{n:04}"
        topic = parse(f"tango://host:10000/bench/device/1/{name}.idl5_change")
        made.append(ScalarEncoder(topic, name, KINDS[n % len(KINDS)]))
    return made


def events(made: list[ScalarEncoder]) -> Columns:
    def rows() -> Iterator[tuple[bytes, ...]]:
        for n in range(BATCH):
            yield tuple(made[n % len(made)].frames(1 + n // len(made), NOW + n, Quality.VALID, n))

    return [list(column) for column in zip(*rows(), strict=True)]
