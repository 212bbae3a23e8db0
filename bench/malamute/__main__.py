"""``python -m bench.malamute``: the Malamute broker beside what it is to be compared with, a table and one JSON file.

Like :mod:`bench.run`: the order within a round is random, ratios are taken within a round, and everything that was sent
is looked for at its end, in order. Parts one and two have clients in C (``client.c``) and the brokers of
:mod:`bench.malamute.brokers`, with ``--originals`` also the original broker: how much they forward, and how long
messages of one stream take while another one is busy and its reader takes nothing (``fair``), or begins again to take
what waits for it (``resume``). Part three has Spark at one end, and our durable broker or NATS at the other.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mama_spark.malamute.broker.engines.durable.store_reader import StoreReader, store_path

from ..broker import Broker
from ..contenders import flight_log, sink
from ..machine import Meter, rounds, wait_until_quiet
from ..result import RESULTS, ROOT, facts, finish
from ..run import session  # first: it sets what Spark's workers need
from . import report

#: Broker -> messages at 100 B and 1 kB, enough for two seconds and more.
FLOWS = {
    "forward": (400_000, 300_000),
    "literal": (60_000, 50_000),
    "simple": (400_000, 300_000),
    "durable": (300_000, 200_000),
}
#: The original broker, where it is installed: its messages are those of ``simple``.
ORIGINAL = "original"
#: Brokers whose streams are served beside a busy one, and messages a second to that one.
FAIR = ("simple", "durable")
BUSY = 22_000
FAIR_PINGS = 1200  #: one each 5 ms
FAIR_SIZE = 200
PINGS = 3000  #: messages whose latency is measured, one after another
ROWS = 1_000_000
STREAM = "bench"
#: name, where, options of the sink
WRITES: list[tuple[str, str, dict[str, str]]] = [
    ("write-nats", "nats", {"dedup": "false"}),
    ("write-nats-message", "nats", {"dedup": "false", "ackMode": "message"}),
    ("write-nats-dedup", "nats", {}),
    ("write-durable", "mlp", {"dedup": "false"}),
    ("write-durable-dedup", "mlp", {}),
]


@contextmanager
def serving(kind: str, folder: Path, originals: Path | None = None) -> Iterator[tuple[int, int]]:
    """Port and process id of a broker in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "bench.malamute.brokers", kind, str(folder)]
    if kind == ORIGINAL:
        command.append(str(originals))
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port, pid = process.stdout.readline().split()
        yield int(port), int(pid)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
        shutil.rmtree(folder)


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def compile_client(folder: Path) -> Path:
    program = folder / "client"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(Path(__file__).with_name("client.c"))], check=True)
    return program


class Bench:
    """``runs`` collects one record a run.

    :param originals: where the original broker is installed, if it is
    """

    def __init__(self, work: Path, scale: float, patient: bool, originals: Path | None = None) -> None:
        self.originals = originals
        self.work = work
        self.scale = scale
        self.patient = patient
        self.runs: list[dict[str, Any]] = []
        self.program: Path | None = None

    def _client(self, kind: str, port: int, mode: str, count: int, size: int) -> list[float]:
        self.program = self.program or compile_client(self.work)
        command = [str(self.program), str(port), mode, str(count), str(size), str(BUSY)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise RuntimeError(f"{kind}: {done.stderr}")
        return [float(word) for word in done.stdout.split()]

    def _keep(self, **record: Any) -> None:
        self.runs.append(record)
        latency = f"{record.get('p50_us', 0):8.1f} us, p99 {record.get('p99_us', 0):10.1f} us"
        shown = f"{record['rate']:10,.0f} /s" if "rate" in record else latency
        print(f"  {record['name']:20s} {record['size']:5d} B  {shown}", flush=True)

    def flow(self, kind: str, size: int, round_: int) -> None:
        count = max(1000, int(FLOWS["simple" if kind == ORIGINAL else kind][size != 100] * self.scale))
        with serving(kind, self.work / "broker", self.originals) as (port, pid):
            self._client(kind, port, "flow", count // 20, size)
            if self.patient:
                wait_until_quiet()
            with Meter(pid) as meter:
                (rate,) = self._client(kind, port, "flow", count, size)
            self._keep(
                name=kind, size=size, round=round_, rate=rate, server_us=meter.server / count * 1e6,
                peak_mb=peak_mb(pid), other_cores=meter.others,
            )  # fmt: skip

    def latency(self, kind: str, round_: int) -> None:
        count = max(200, int(PINGS * self.scale))
        with serving(kind, self.work / "broker", self.originals) as (port, _):
            self._client(kind, port, "latency", 200, 100)
            if self.patient:
                wait_until_quiet()
            p50, p99 = self._client(kind, port, "latency", count, 100)
            self._keep(name=f"{kind}-latency", size=100, round=round_, p50_us=p50, p99_us=p99)

    def brokers(self, n: int, minutes: float) -> None:
        """Flow at two sizes and latency (size 0) of all brokers, in rounds."""
        tasks = [
            (kind, size)
            for kind in self._with_original(FLOWS)
            for size in ((100, 1000, 0) if self.patient else (100, 0))
        ]
        for round_ in rounds(n, "brokers", minutes, warm_up=False):
            for kind, size in random.sample(tasks, len(tasks)):
                if size:
                    self.flow(kind, size, round_)
                else:
                    self.latency(kind, round_)

    def _with_original(self, kinds: Iterable[str]) -> list[str]:
        return [*kinds, ORIGINAL] if self.originals else list(kinds)

    def fairness(self, n: int) -> None:
        """Latency beside a busy stream whose reader takes nothing, or begins again."""
        count = max(100, int(FAIR_PINGS * self.scale))
        tasks = [(kind, mode) for kind in self._with_original(FAIR) for mode in ("fair", "resume")]
        for round_ in rounds(n, "a busy stream", warm_up=False):
            for kind, mode in random.sample(tasks, len(tasks)):
                with serving(kind, self.work / "broker", self.originals) as (port, pid):
                    if self.patient:
                        wait_until_quiet(patience=5.0)
                    with Meter(pid) as meter:
                        p50, p99, most, busy = self._client(kind, port, mode, count, FAIR_SIZE)
                self._keep(
                    name=f"{kind}-{mode}", size=FAIR_SIZE, round=round_, p50_us=p50, p99_us=p99, most_us=most,
                    busy_rate=busy, other_cores=meter.others,
                )  # fmt: skip

    # --- Spark ---------------------------------------------------------------------------------------------------

    def writes(self, n: int, minutes: float) -> None:
        rows = max(1000, int(ROWS * self.scale))
        spark = session(self.work)
        filler = "x" * 89

        def write(options: dict[str, str], url: str, count: int) -> None:
            shutil.rmtree(flight_log(self.work), ignore_errors=True)
            df = spark.range(0, count, 1, 2).selectExpr(
                "concat('b.s', cast(id % 16 + 10 as string)) AS topic",
                f"cast(concat(cast(id + 1000000000 as string), '-', '{filler}') as binary) AS value",
            )
            sink(log=True, **options)(df, url, self.work)

        with Broker(self.work / "nats") as nats:
            for round_ in rounds(n, "df.write", minutes):
                count = max(1000, rows // 10) if round_ < 0 else rows
                for name, where, options in random.sample(WRITES, len(WRITES)):
                    if where == "nats":
                        nats.make_again()
                        self._write(name, round_, count, nats.pid, lambda: write(options, nats.url, count))  # noqa: B023
                        stored = nats.count()
                    else:
                        with serving("durable", self.work / "broker") as (port, pid):
                            url = f"mlp://127.0.0.1:{port}/{STREAM}"
                            self._write(name, round_, count, pid, lambda: write(options, url, count))  # noqa: B023
                            store = StoreReader(store_path(self.work / "broker", STREAM.encode()))
                            _, stored = store.bounds()
                            store.close()
                    if stored != count:
                        raise RuntimeError(f"{name}: {count} rows sent, {stored} in the broker")
        spark.stop()

    def _write(self, name: str, round_: int, rows: int, pid: int, write: Any) -> None:
        if self.patient and round_ >= 0:
            wait_until_quiet()
        with Meter(pid) as meter:
            write()
        if round_ >= 0:
            self._keep(
                name=name, size=100, round=round_, rate=rows / meter.seconds, server_us=meter.server / rows * 1e6,
                client_us=meter.client / rows * 1e6, peak_mb=peak_mb(pid), other_cores=meter.others,
            )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.malamute", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of messages")
    parser.add_argument("--minutes", type=float, default=3.0, help="begin no other round of brokers after it")
    parser.add_argument("--write-minutes", type=float, default=2.0, help="the same for df.write")
    parser.add_argument("--only", choices=("brokers", "fair", "writes"), help="one part")
    parser.add_argument("--fair-rounds", type=int, default=3, help="of latency beside a busy stream")
    parser.add_argument(
        "--originals", type=Path, default=os.environ.get("ORIGINALS"), help="where the original broker is"
    )
    parser.add_argument("--quick", action="store_true", help="does it run at all: few messages, one round")
    parser.add_argument("--out", type=Path, default=RESULTS / "malamute-latest.json")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.fair_rounds, args.scale = 1, 1, min(args.scale, 0.02)
    with tempfile.TemporaryDirectory(prefix="mama-bench-malamute-", ignore_cleanup_errors=True) as work:
        bench = Bench(Path(work), args.scale, not args.quick, args.originals)
        if args.only in (None, "brokers"):
            bench.brokers(args.rounds, args.minutes)
        if args.only in (None, "fair"):
            bench.fairness(args.fair_rounds)
        if args.only in (None, "writes"):
            bench.writes(args.rounds, args.write_minutes)
    result = {"facts": facts(), "runs": bench.runs}
    finish(result, args.out, report.text, report.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
