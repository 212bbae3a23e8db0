"""``python -m bench.current [--keys N] [--rounds N]``: the current values of a bucket beside the same rows as a range.

Each key has one value of 100 bytes. Both ways are read in turn by one task, and every row is counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from .broker import Broker
from .machine import Meter, WorkerMemory, rounds, wait_until_quiet
from .readers import counted
from .result import spread
from .run import session

WAYS = {"current": {}, "range": {"latestPerTopic": "false", "minPartitions": "1"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    n, rates, peaks = args.keys, {way: list[float]() for way in WAYS}, dict.fromkeys(WAYS, 0)
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        broker.api("STREAM.CREATE.KV_million", name="KV_million", subjects=["$KV.million.>"], max_msgs_per_subject=1)
        spark = session(Path(folder))
        source = {"url": broker.url, "bucket": "million"}
        rows = spark.range(0, n, 1, 2).selectExpr("concat('device.', id) AS key", "rpad(id, 100, '.') AS value")
        rows.write.format("mamapub").options(**source).mode("append").save()
        for round_ in rounds(args.rounds, f"{n:,} keys"):
            for way in sorted(WAYS, reverse=round_ % 2 == 1):
                wait_until_quiet()
                with WorkerMemory() as memory, Meter(broker.pid) as meter:
                    read = spark.read.format("mamasub").options(**source, **WAYS[way]).load()
                    found = counted(read.withColumnRenamed("revision", "sequence"))
                if found != (n, n * (n + 1) // 2):
                    raise RuntimeError(f"{way}: of the sequences 1 to {n} came (number, sum) {found}")
                peaks[way] = max(peaks[way], memory.peak)
                if round_ >= 0:
                    rates[way].append(n / meter.seconds)
        spark.stop()
    for way, each in rates.items():
        print(f"{way:8} {spread(each)} rows/s, worker at most {peaks[way] / 2**20:.0f} MB")
    ratios = [current / range_ for current, range_ in zip(rates["current"], rates["range"], strict=True)]
    print(f"current to range: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


if __name__ == "__main__":
    main()
