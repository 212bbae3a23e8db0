"""Discovery by number of sources that are announced: an image of all, and what one announcement costs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from mama_spark.contracts.bridge import SourceKey
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings

TITLE = "Sources that are announced"
UNIT = "sources"
SIZES = (100, 1_000, 10_000)
COLUMNS = {
    "announce_us": "processor µs of an announcement", "image_s": "processor s of an image",
    "server_s": "processor s of the server for both", "stored_mb": "MB in streams", "offset": "bytes of a checkpoint",
}  # fmt: skip
GROWS = "image_s"
RECORD = b"%0*d" % (400, 0)


def measure(number: int) -> dict[str, float]:
    with TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        process = psutil.Process(server.pid)
        discovery = NatsDiscovery(NatsSettings((server.url,), retry_deadline=120.0))
        discovery.open()
        try:
            discovery.create_streams()
            served, before = sum(process.cpu_times()[:2]), time.process_time()
            for n in range(number):
                discovery.announce(SourceKey(f"desk-{n}", n), RECORD, 86_400.0)
            announced, before = time.process_time() - before, time.process_time()
            start = discovery.initial_offset("image")
            end = discovery.latest_offset(start)
            found = sum(len(events) for events in discovery.read(start, end))
            image, served = time.process_time() - before, sum(process.cpu_times()[:2]) - served
            if found < number:
                raise SystemExit(f"{found} events of {number} sources")
            stored = server.ask("jsz")["bytes"]
        finally:
            discovery.close()
        return {
            "announce_us": 1e6 * announced / number, "image_s": image, "server_s": served, "stored_mb": stored / 1e6,
            "offset": len(json.dumps(end)),
        }  # fmt: skip
