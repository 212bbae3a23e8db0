"""``python -m bench.malamute.stream_cost``: what streams in use cost the broker: memory, threads, descriptors, time.

For each engine, one client reads many streams that have no messages, then one message is sent to each of them; after
a while without messages, durable streams have closed their files.

"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mama_spark.malamute.broker.engines.durable.engine import REST
from mama_spark.malamute.client.client import MalamuteClient

from .__main__ import serving


@dataclass(frozen=True)
class Cost:
    """Of one process: kilobytes, numbers, seconds of its processor."""

    memory: float
    threads: int
    descriptors: int
    cpu: float

    @classmethod
    def of(cls, pid: int) -> Cost:
        process = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cls(
            float(status["VmRSS"].split()[0]), int(status["Threads"]), len(list((process / "fd").iterdir())), cpu
        )


def measure(kind: str, folder: Path, streams: int) -> None:
    with serving(kind, folder) as (port, pid):
        url = f"mlp://127.0.0.1:{port}"
        with MalamuteClient(url, "reader") as reader, MalamuteClient(url, "writer") as writer:
            writer.write("first")
            writer.send("s", b"")
            writer.sync()
            before, begun = Cost.of(pid), time.monotonic()

            def show(what: str) -> None:
                now = Cost.of(pid)
                print(
                    f"{kind:8} {what:28} {(now.memory - before.memory) / streams:6.1f} kB a stream, "
                    f"{now.threads - before.threads:3} threads, {now.descriptors - before.descriptors:5} descriptors, "
                    f"{time.monotonic() - begun:6.2f} s, {now.cpu - before.cpu:5.2f} s of processor",
                    flush=True,
                )

            for number in range(streams):
                reader.read(f"stream{number}", "^none")
            show(f"{streams} read, no messages")
            for number in range(streams):
                writer.write(f"stream{number}")
                writer.send("temp", b"%d" % number)
            writer.sync()
            show("one message sent to each")
            time.sleep(REST + 5)
            show("after a pause")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000, help="at most client_streams of the broker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for kind in ("simple", "durable"):
            measure(kind, Path(work) / kind, options.streams)


if __name__ == "__main__":
    main()
