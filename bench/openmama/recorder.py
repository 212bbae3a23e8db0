"""``python -m bench.openmama.recorder``: messages of an OpenMAMA network into a log, beside a bare pyzmq SUB.

One process sends encoded frames of 100 bytes with two fields by a bare XPUB, which drops nothing; another one receives
all of them: a bare SUB, which counts their bytes, or the recorder, which decodes them, looks for gaps, and stores each
as a record in a JetStream stream, acknowledged, or a thousand at most in one record. Another way stores records that
were made before, one by one: what the log alone takes. One recorder is bounded by one core, so one more way divides two
topics over two recorders, beside a bare SUB of both topics. In rounds, in random order; compared by the processor time
of the receiving processes and by the rate, both from the first message to the last one that is stored.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zmq
from mama_spark.cli.commands.record import few_collections, log_options
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.recorder.frame_recorder import FrameRecorder
from mama_spark.openmama.recorder.record_source import MamaRecordSource
from mama_spark.openmama.recorder.settings import OpenMamaRecorderSettings
from mama_spark.openmama.wire.frame_filter import FrameColumns
from mama_spark.openmama.wire.frames import OZ
from mama_spark.packing.pack_headers import rows_of_messages
from mama_spark.publishing.resilient_publisher import ResilientPublisher
from mama_spark.recording.recorder import Recorder
from mama_spark.registry import publisher_bridge

from .sink import FRAME, ROWS, TOPIC, encoded_frames

SPAWN = multiprocessing.get_context("spawn")
MESSAGES, BATCH = 1_600_000, 4096  #: so many that what a record waits for others at the end does not count
TOPICS = (TOPIC, "OM.ITT")


class Stopwatch:
    """Processor seconds since the first message; and the times of the first and the last, which all processes share."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    def read(self) -> tuple[float, float, float]:
        wall, cpu = self._began
        return time.process_time() - cpu, wall, time.monotonic()


def count(pipe: Connection, port: int, n: int, log: str, topics: tuple[str, ...]) -> None:
    """Receive and count; nothing is kept."""
    context = zmq.Context[zmq.Socket[bytes]]()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.RCVHWM, 0)
    sub.bind(f"tcp://127.0.0.1:{port}")
    for topic in topics:
        sub.subscribe(topic.encode() + b"\0")
    pipe.send("ready")
    received_bytes = len(sub.recv())
    watch = Stopwatch()
    received_bytes += sum(len(sub.recv()) for _ in range(n - 1))
    pipe.send((*watch.read(), received_bytes))
    sub.close(0)
    context.term()


def record(pipe: Connection, port: int, n: int, log: str, topics: tuple[str, ...], **more: str) -> None:
    """As ``mama record`` does it.

    :param more: settings
    """
    options = log_options({"url": log, "createStream": "true"})
    writer = ResilientPublisher(
        lambda: publisher_bridge(options), max_in_flight=options.max_in_flight, wait_timeout=options.wait_timeout,
        rows_of=rows_of_messages,
    )  # fmt: skip
    settings = OpenMamaRecorderSettings.of(
        {"url": f"oz://127.0.0.1:{port}?mode=direct&bind=true", "topics": list(topics), "name": f"recorder-{port}",
         "report": "off", "dictionary": "off", **more}
    )  # fmt: skip
    recorder = Recorder(MamaRecordSource(settings), writer, ids=options.dedup)
    watch: list[Stopwatch] = []

    def stop() -> bool:
        stored = recorder.counts.stored
        if not watch and recorder.counts.recorded > 1:  # 1: that it began
            watch.append(Stopwatch())
        return stored > n

    def say(text: str) -> None:
        pipe.send(text)

    with few_collections():
        recorder.run(stop, say)
    pipe.send((*watch[0].read(), n * FRAME))
    writer.close()


def record_packed(pipe: Connection, port: int, n: int, log: str, topics: tuple[str, ...]) -> None:
    record(pipe, port, n, log, topics, packMaxRows="1000")


def store(pipe: Connection, port: int, n: int, log: str, topics: tuple[str, ...]) -> None:
    """What the log alone takes: records that were made before."""
    options = log_options({"url": log, "createStream": "true"})
    writer = ResilientPublisher(
        lambda: publisher_bridge(options), max_in_flight=options.max_in_flight, wait_timeout=options.wait_timeout
    )
    payload_at = np.full(BATCH, len(OZ.publish_head(TOPIC)))
    frames = FrameColumns(encoded_frames()[:BATCH], [TOPIC], np.zeros(BATCH, np.int64), payload_at)
    made = FrameRecorder("mama", "oz").records(frames, {}, time.time_ns())
    sizes = [BATCH] * (n // BATCH) + [n % BATCH] * bool(n % BATCH)
    batches, first = [], 0
    for size in sizes:
        ids = [f"bench-{number}" for number in range(first, first + size)] if options.dedup else None
        named = None if ids is None else pa.array(ids)
        batches.append(MessageBatch(made.topics.slice(0, size), made.payloads.slice(0, size), ids=named))
        first += size
    pipe.send("ready")
    watch = Stopwatch()
    with few_collections():
        for batch in batches:
            writer.write(batch)
        assert writer.drain(600)
    pipe.send((*watch.read(), n * FRAME))
    writer.close()


@dataclass(frozen=True)
class Way:
    """
    :ivar run: the receiver; says "ready", then processor seconds, times of the first and last message, bytes
    :ivar topics: whose messages are sent by turns
    :ivar processes: receivers, each of which has as many of the topics
    :ivar sends: whether there is a sender
    """

    run: Callable[[Connection, int, int, str, tuple[str, ...]], None]
    topics: tuple[str, ...] = (TOPIC,)
    processes: int = 1
    sends: bool = True


WAYS = {
    "bare SUB": Way(count),
    "recorder": Way(record),
    "recorder, packed": Way(record_packed),
    "log alone": Way(store, sends=False),
    "bare SUB, two topics": Way(count, TOPICS),
    "two recorders, packed": Way(record_packed, TOPICS, 2),
}

COMPARED = [
    ("recorder", "bare SUB"),
    ("recorder, packed", "bare SUB"),
    ("two recorders, packed", "bare SUB, two topics"),
    ("recorder", "log alone"),
]


def free_port() -> int:
    with zmq.Context[Any]() as context, context.socket(zmq.PULL) as probe:
        return int(probe.bind_to_random_port("tcp://127.0.0.1"))


def send(pipe: Connection, ports: list[int], topics: tuple[str, ...], n: int) -> None:
    """Send encoded frames once all topics are subscribed to; say how many processor seconds all of it took."""
    began = time.process_time()
    frames = [frame for some in zip(*map(encoded_frames, topics), strict=True) for frame in some]
    context = zmq.Context[zmq.Socket[bytes]]()
    pub = context.socket(zmq.XPUB)
    pub.setsockopt(zmq.SNDHWM, 0)
    for port in ports:
        pub.connect(f"tcp://127.0.0.1:{port}")
    wanted = {b"\1" + topic.encode() + b"\0" for topic in topics}
    while wanted:
        wanted.discard(pub.recv())
    for _ in range(n // len(frames)):
        for frame in frames:
            pub.send(frame)
    pub.close()
    context.term()
    pipe.send(time.process_time() - began)


def measure(name: str, n: int, log: str) -> tuple[float, float, float]:
    """Processor seconds of the receivers, seconds, and processor seconds of receivers and sender.

    :raises AssertionError: other bytes came
    """
    way, ports, readers = WAYS[name], list[int](), list[tuple[Any, Connection]]()
    for number in range(way.processes):
        mine, theirs = SPAWN.Pipe()
        ports.append(free_port())
        topics = way.topics[number :: way.processes]
        args = (theirs, ports[-1], n // way.processes, log, topics)
        reader = SPAWN.Process(target=way.run, args=args, daemon=True)
        reader.start()
        readers.append((reader, mine))
        assert mine.recv() == "ready"
    sent, telling = SPAWN.Pipe()
    if way.sends:
        SPAWN.Process(target=send, args=(telling, ports, way.topics, n), daemon=True).start()
    cpus, begins, ends, received_bytes = zip(*(mine.recv() for _, mine in readers), strict=True)
    assert sum(received_bytes) == n * FRAME, f"{sum(received_bytes)} bytes arrived, not {n * FRAME}"
    for reader, _ in readers:
        reader.join()
    cpu: float = sum(cpus)
    return cpu, max(ends) - min(begins), cpu + (sent.recv() if way.sends else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.openmama.recorder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"a multiple of {2 * ROWS}")
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in random.sample(list(WAYS), len(WAYS)):
            with tempfile.TemporaryDirectory() as folder:
                server = NatsServer(Path(folder), jetstream="max_file: 10GB")
                server.start()
                try:
                    found[way].append(measure(way, args.messages, f"{server.url}/MAMA"))
                finally:
                    server.stop()
    print(f"| way | messages a processor second of its receivers | messages a second | ({args.rounds} rounds)")
    print("|---|---|---|")
    for way, runs in found.items():
        cpu, wall = (args.messages / statistics.median(run[n] for run in runs) for n in (0, 1))
        print(f"| {way} | {cpu:,.0f} | {wall:,.0f} |")
    print()
    for way, beside in COMPARED:
        kinds = ["by processor time", "by rate", "by processor time, the sender's included"]
        for n, what in enumerate(kinds if beside != "log alone" else kinds[:2]):
            ratios = [b[n] / r[n] for b, r in zip(found[beside], found[way], strict=True)]
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{way} / {beside} {what}: {statistics.median(ratios):.2f} {spread}")


if __name__ == "__main__":
    main()
