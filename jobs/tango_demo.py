"""Records a real Tango device, loses events of it, archives what came, and reports what is missing.

Needs the extras local, tango, tango-demo and report.

``python -m mama_spark.jobs.tango_demo [--folder .run/tango-demo]``, or ``make demo-tango``. A device server of PyTango
polls four attributes and sends change events; ``mama record`` writes them into a log of a real nats-server. Then the
recorder is killed and started again, and later stopped while the device sends more than fits between them, and nothing
after it. ``jobs/tango_archive.py`` makes Delta tables of the log. Nothing is left running, and no database is needed.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from delta import configure_spark_with_delta_pip
from mama_spark.contracts.errors import MamaError
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.client.device_proxy import open_device
from pyspark.sql import SparkSession

DEVICE, BURST, PATIENCE = "demo/cell/1", 20_000, 60.0
BEGAN = time.monotonic()
SPARK = {
    "spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
}  # fmt: skip
SHARES = """
SELECT attribute, count_if(kind = 'event') AS events,
       coalesce(sum(gap_count) FILTER (WHERE kind = 'gap'), 0) AS lost, max(label) AS label, max(unit) AS unit
FROM archive LEFT JOIN (SELECT att_conf_id, label, unit FROM att_conf WHERE stopped IS NULL) USING (att_conf_id)
WHERE event = 'change' AND (origin = 'event' OR kind = 'gap') GROUP BY attribute ORDER BY attribute
"""
GAPS = "SELECT attribute, time, gap_count, cause FROM archive WHERE kind = 'gap' ORDER BY sequence"
RECORDER = """[recorder]
devices = ["{device}"]
url = "tango://127.0.0.1:{port}#dbase=no"
lossCheck = "4s"
report = "off"
[log]
url = "{url}/TANGO"
createStream = true
"""


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:4.0f}s] {text}", flush=True)


def serve(port: int) -> None:
    """The device server, in a process of its own."""
    from tango.server import Device, attribute, command, run  # in this process only, which never forks

    polled = {"dtype": float, "polling_period": 50, "abs_change": "0.001"}

    class Cell(Device):  # type: ignore[misc]
        @attribute(label="Temperature", unit="degC", **polled)  # type: ignore[untyped-decorator]
        def temperature(self) -> float:
            return 21 + 3 * math.sin(time.time() / 3) + random.gauss(0, 0.05)

        @attribute(label="Pressure", unit="mbar", **polled)  # type: ignore[untyped-decorator]
        def pressure(self) -> float:
            return 1e-3 * math.exp(-(time.time() % 20) / 10) * 1000

        @attribute(label="Current", unit="A", **polled)  # type: ignore[untyped-decorator]
        def current(self) -> float:
            return 100 + random.gauss(0, 0.2)

        @attribute(label="Profile", unit="counts", dtype=(float,), max_dim_x=1000)  # type: ignore[untyped-decorator]
        def profile(self) -> list[float]:
            return [0.0] * 500

        def init_device(self) -> None:
            super().init_device()
            self.set_change_event("profile", True, False)

        @command(dtype_in=str)  # type: ignore[untyped-decorator]
        def Burst(self, count: str) -> None:
            for number in range(int(count)):
                self.push_change_event("profile", [float(number)] * 500)

    words = ["Cell", "demo", "-ORBendPoint", f"giop:tcp:127.0.0.1:{port}", "-nodb", "-dlist", DEVICE]
    run([Cell], args=words)


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.1)


@contextmanager
def process(*words: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("ab") as out, subprocess.Popen([sys.executable, *words], stdout=out, stderr=out) as started:
        try:
            yield started
        finally:
            started.send_signal(signal.SIGCONT)
            started.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def call(port: int, command: str, argument: str | None = None) -> bool:
    try:
        with open_device(f"tango://127.0.0.1:{port}/{DEVICE}#dbase=no", timeout=PATIENCE) as device:
            device.command(command, argument)
        return True
    except MamaError:
        return False


def record(folder: Path, url: str, port: int) -> None:
    """Record for some seconds, with trouble."""
    conf, output = folder / "record.toml", folder / "recorder.out"
    conf.write_text(RECORDER.format(device=DEVICE, port=port, url=url))
    words = ("-m", "mama_spark.cli", "record", "--conf-file", str(conf))
    with process(*words, output=output) as first:
        wait_for(lambda: "ready" in output.read_text(), "the recorder")
        say("mama record is ready; it records for 8 s, and is killed")
        time.sleep(8)
        first.kill()
    time.sleep(3)
    with process(*words, output=output) as second:
        wait_for(lambda: output.read_text().count("ready") == 2, "the recorder")
        say("3 s later it is started again")
        time.sleep(6)
        say(f"it stands still while the device sends {BURST:,} profiles, and none after them")
        second.send_signal(signal.SIGSTOP)
        call(port, "Burst", str(BURST))
        second.send_signal(signal.SIGCONT)
        time.sleep(8)
        second.terminate()
        second.wait(PATIENCE)


def archive(folder: Path, url: str) -> None:
    archive_job = importlib.import_module("mama_spark.jobs.tango_archive")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # or the workers are the first python3 of the PATH
    conf = {
        "mamasub": {"url": url, "stream": "TANGO"},
        "archive": {"path": str(folder / "archive")},
        "stream": {"checkpointLocation": str(folder / "checkpoint"), "trigger": "availableNow"},
        "strategies": {},
    }
    builder = SparkSession.builder.master("local[2]").appName("mama-tango-demo")
    for name, value in SPARK.items():
        builder = builder.config(name, value)
    spark = archive_job.session(configure_spark_with_delta_pip(builder))
    try:
        archive_job.run(spark, conf)
        for name in ("archive", "archive_att_conf"):
            view = name.removeprefix("archive_")
            spark.read.format("delta").load(str(folder / name)).createOrReplaceTempView(view)
        report(spark, folder)
    finally:
        spark.stop()


def report(spark: SparkSession, folder: Path) -> None:
    import altair as alt

    print(f"\nEvents of {DEVICE}, and how many are missing\n")
    for row in spark.sql(SHARES).collect():
        share = 100 * row.events / (row.events + row.lost)
        print(f"  {row.attribute:<12} {row.events:>8,} recorded {row.lost:>8,} lost {share:>8.2f} %   {row.unit or ''}")
    print("\nGaps\n")
    for row in spark.sql(GAPS).collect():
        print(f"  {row.time:%H:%M:%S}  {row.attribute:<12} {row.gap_count:>8,} lost  {row.cause}")
    values = spark.sql(
        "SELECT time, value, attribute FROM archive WHERE value IS NOT NULL AND kind = 'event'"
    ).toPandas()
    gaps = spark.sql(GAPS).toPandas()
    alt.data_transformers.disable_max_rows()
    line = alt.Chart(values).mark_line().encode(x="time:T", y="value:Q", color="attribute:N")
    marks = alt.Chart(gaps).mark_rule(color="red").encode(x="time:T", tooltip=["attribute", "gap_count", "cause"])
    (line + marks).properties(width=900).save(folder / "report.html")
    print(f"\nThe same as a plot: {folder / 'report.html'}\nDelta tables: {folder / 'archive'}, with _att_conf\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".run/tango-demo"))
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends what was started
    folder: Path = given.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer(folder / "nats"))
        stack.enter_context(process(__file__, "--serve", str(port), output=folder / "device.out"))
        wait_for(lambda: call(port, "State"), "the device server")
        say(f"a device server of PyTango with {DEVICE}, and nats-server on {server.url}")
        record(folder, server.url, port)
        say("Spark archives the log")
        archive(folder, server.url)


if __name__ == "__main__":
    main()
