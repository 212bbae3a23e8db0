"""``python -m bench.openmama.sink``: rows to one subscriber over OpenMAMA's framing, beside a bare pyzmq PUB/SUB pair.

Both send the same bytes, messages of 100 bytes with two fields, to the same subscriber, a process that counts. The
bare pair sends frames that were encoded before; the sink begins with columns, as a task of Spark does, encodes them and
keeps account of each row. In rounds, in random order; compared by the processor time of the sending process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
import zmq
from mama_spark.contracts.message import MessageBatch
from mama_spark.openmama.bridge import FieldCodec, OpenMamaBridge, OpenMamaSettings
from mama_spark.openmama.bridge.field_columns import FieldForms
from mama_spark.openmama.wire.frames import OZ
from mama_spark.options import SinkOptions
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.batch_publisher import BatchPublisher

SPAWN = multiprocessing.get_context("spawn")
MESSAGES, ROWS, FRAME = 400_000, 10_000, 100
TOPIC = "OM.IBM"


def columns(n: int = ROWS) -> pa.RecordBatch:
    """Rows whose frames have :data:`FRAME` bytes."""
    codec = FieldCodec(FieldForms(), TOPIC)
    empty = codec.encode(pa.RecordBatch.from_pydict({"wText": [""], "wBid": [1.5]}))
    filling = FRAME - len(OZ.publish_head(TOPIC)) - len(empty.payloads[0].as_py())
    return pa.RecordBatch.from_pydict({"wText": ["x" * filling] * n, "wBid": pa.array([1.5] * n)})


def count(pipe: Connection, n: int) -> None:
    """The subscriber: says its port, counts, says when it has all."""
    context = zmq.Context[zmq.Socket[bytes]]()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.RCVHWM, 0)
    port = sub.bind_to_random_port("tcp://127.0.0.1")
    sub.subscribe(TOPIC.encode() + b"\0")
    pipe.send(port)
    received_bytes = sum(len(sub.recv()) for _ in range(n))
    pipe.send(received_bytes)
    pipe.recv()  # a sender waits for a reader that is away
    sub.close(0)
    context.term()


def encoded_frames(topic: str = TOPIC) -> list[bytes]:
    """Of :func:`columns`.

    :param topic: as long as :data:`TOPIC`
    """
    payloads = FieldCodec(FieldForms(), TOPIC).encode(columns()).payloads.to_pylist()
    return [OZ.publish_head(topic) + payload for payload in payloads]


def bare(port: int, n: int) -> None:
    """Send encoded frames by PUB."""
    frames = encoded_frames()
    context = zmq.Context[zmq.Socket[bytes]]()
    pub = context.socket(zmq.XPUB)
    pub.setsockopt(zmq.SNDHWM, 0)
    pub.connect(f"tcp://127.0.0.1:{port}")
    pub.recv()  # the subscription
    for _ in range(n // ROWS):
        for frame in frames:
            pub.send(frame)
    pub.close()
    context.term()


def sink(port: int, n: int) -> None:
    """Encode columns and publish them, as a task does."""
    rows, codec = columns(), FieldCodec(FieldForms(), TOPIC)
    options = SinkOptions.parse({"url": f"oz://127.0.0.1:{port}?mode=direct", "waitForSubscribers": "60s"})
    bridge = OpenMamaBridge(OpenMamaSettings.from_options(options))
    bridge.open()
    publisher = BatchPublisher(bridge, WindowConfig(4096, 2048), on_finished=lambda flights: None)
    publisher.start()
    for _ in range(n // ROWS):
        encoded = codec.encode(rows)
        publisher.put(MessageBatch(encoded.topics, encoded.payloads))
    publisher.drain()
    publisher.stop()
    bridge.close()


WAYS: dict[str, Callable[[int, int], None]] = {"bare": bare, "sink": sink}


def send(way: str, port: int, n: int, pipe: Connection) -> None:
    """The sending process."""
    began, before = time.monotonic(), time.process_time()
    WAYS[way](port, n)
    pipe.send((time.process_time() - before, time.monotonic() - began))


def measure(way: str, n: int) -> tuple[float, float]:
    """Processor seconds of the sender, and seconds until the subscriber had all.

    :raises AssertionError: it counted other bytes
    """
    (mine, theirs), (answer, asked) = SPAWN.Pipe(), SPAWN.Pipe()
    reader = SPAWN.Process(target=count, args=(theirs, n), daemon=True)
    reader.start()
    writer = SPAWN.Process(target=send, args=(way, mine.recv(), n, asked), daemon=True)
    writer.start()
    found: Any = answer.recv()
    received_bytes = mine.recv()
    assert received_bytes == n * FRAME, f"{received_bytes} bytes arrived, not {n * FRAME}"
    writer.join()
    mine.send("end")
    reader.join()
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.openmama.sink")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in random.sample(list(WAYS), len(WAYS)):
            found[way].append(measure(way, args.messages))
    rates = {way: args.messages / statistics.median(cpu for cpu, _ in runs) for way, runs in found.items()}
    walls = {way: args.messages / statistics.median(wall for _, wall in runs) for way, runs in found.items()}
    print(f"| way | messages a processor second of the sender | messages a second | ({args.rounds} rounds)")
    print("|---|---|---|")
    for way in WAYS:
        print(f"| {way} | {rates[way]:,.0f} | {walls[way]:,.0f} |")
    ratios = [b[0] / s[0] for b, s in zip(found["bare"], found["sink"], strict=True)]
    print(f"\nsink / bare by processor time: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
