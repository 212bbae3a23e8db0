"""``python -m bench.openmama.recorder``: messages of an OpenMAMA network into a log, beside a bare pyzmq SUB.

One process sends encoded frames of 100 bytes with two fields by a bare XPUB, which drops nothing; another one receives
all of them: a bare SUB, which counts their octets, or the recorder, which decodes them, looks for gaps, and stores each
as a record in a JetStream stream, acknowledged, or a thousand at most in one record. Another way stores records that
were made before, one by one: what the log alone takes. In rounds, in random order; compared by the processor time of
the process from the first message to the last one that is stored.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zmq
from mama_spark.bridges import publisher_bridge
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.commands.record import few_collections, log_options
from mama_spark.message import MessageBatch
from mama_spark.openmama_wire.peer import FrameColumns
from mama_spark.openmama_wire.protocol.framings import OZ
from mama_spark.packing import rows_of_messages
from mama_spark.publisher.resilient_publisher import ResilientPublisher
from mama_spark.services.openmama_recorder import OpenMamaRecorder, OpenMamaRecorderSettings
from mama_spark.services.openmama_recorder.frame_recorder import FrameRecorder

from .sink import FRAME, ROWS, TOPIC, bare, encoded_frames

SPAWN = multiprocessing.get_context("spawn")
MESSAGES, BATCH = 400_000, 4096


class Stopwatch:
    """Processor seconds and seconds since the first message."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    def read(self) -> tuple[float, float]:
        wall, cpu = self._began
        return time.process_time() - cpu, time.monotonic() - wall


def count(pipe: Connection, port: int, n: int, log: str) -> None:
    """Receive and count; nothing is kept."""
    context = zmq.Context[zmq.Socket[bytes]]()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.RCVHWM, 0)
    sub.bind(f"tcp://127.0.0.1:{port}")
    sub.subscribe(TOPIC.encode() + b"\0")
    pipe.send("ready")
    octets = len(sub.recv())
    watch = Stopwatch()
    octets += sum(len(sub.recv()) for _ in range(n - 1))
    pipe.send((*watch.read(), octets))
    sub.close(0)
    context.term()


def record(pipe: Connection, port: int, n: int, log: str, **more: str) -> None:
    """As ``mama record`` does it.

    :param more: settings
    """
    options = log_options({"url": log, "createStream": "true"})
    writer = ResilientPublisher(
        lambda: publisher_bridge(options), max_in_flight=options.max_in_flight, wait_timeout=options.wait_timeout,
        rows_of=rows_of_messages,
    )  # fmt: skip
    settings = OpenMamaRecorderSettings.of(
        {"url": f"oz://127.0.0.1:{port}?mode=direct&bind=true", "topics": TOPIC, "report": "off", "dictionary": "off",
         **more}
    )  # fmt: skip
    recorder = OpenMamaRecorder(settings, writer, ids=options.dedup)
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


def record_packed(pipe: Connection, port: int, n: int, log: str) -> None:
    record(pipe, port, n, log, packMaxRows="1000")


def store(pipe: Connection, port: int, n: int, log: str) -> None:
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


WAYS: dict[str, Callable[[Connection, int, int, str], None]] = {
    "bare SUB": count,
    "recorder": record,
    "recorder, packed": record_packed,
    "log alone": store,
}


def free_port() -> int:
    with zmq.Context[Any]() as context, context.socket(zmq.PULL) as probe:
        return int(probe.bind_to_random_port("tcp://127.0.0.1"))


def send(pipe: Connection, port: int, n: int) -> None:
    """Say how many processor seconds it took."""
    began = time.process_time()
    bare(port, n)
    pipe.send(time.process_time() - began)


def measure(way: str, n: int, log: str) -> tuple[float, float, float]:
    """Processor seconds of the receiver, seconds, and processor seconds of receiver and sender.

    :raises AssertionError: other octets came
    """
    (mine, theirs), port = SPAWN.Pipe(), free_port()
    reader = SPAWN.Process(target=WAYS[way], args=(theirs, port, n, log), daemon=True)
    reader.start()
    assert mine.recv() == "ready"
    sent, telling = SPAWN.Pipe()
    if way != "log alone":
        SPAWN.Process(target=send, args=(telling, port, n), daemon=True).start()
    cpu, wall, octets = mine.recv()
    assert octets == n * FRAME, f"{octets} octets arrived, not {n * FRAME}"
    reader.join()
    return cpu, wall, cpu + (0.0 if way == "log alone" else sent.recv())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.openmama.recorder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"a multiple of {ROWS}")
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
    print(f"| way | messages a processor second of its process | messages a second | ({args.rounds} rounds)")
    print("|---|---|---|")
    for way, runs in found.items():
        cpu, wall = (args.messages / statistics.median(run[n] for run in runs) for n in (0, 1))
        print(f"| {way} | {cpu:,.0f} | {wall:,.0f} |")
    print()
    for way, beside in (("recorder", "bare SUB"), ("recorder, packed", "bare SUB"), ("recorder", "log alone")):
        kinds = ["by processor time", "by rate", "by processor time, the sender's included"]
        for n, what in enumerate(kinds if beside == "bare SUB" else kinds[:2]):
            ratios = [b[n] / r[n] for b, r in zip(found[beside], found[way], strict=True)]
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{way} / {beside} {what}: {statistics.median(ratios):.2f} {spread}")


if __name__ == "__main__":
    main()
