"""A stream that publishes, and one that reads it back, for a long time and under faults that come by chance.

``MAMA_SOAK_MINUTES`` (15) and ``MAMA_SOAK_SEED`` (chosen, and printed) choose another run.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from mama_spark.flightlog.maintenance import adopt_orphans
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.oracle import Verdict
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin, FetchedMessage
from tests.support.processes import connected_to, descendants, is_java, resident_memory
from tests.support.proxy import Proxy
from tests.support.spark.flight_data import flight_lines
from tests.support.spark.loop_harness import DDL, KillableDriver
from tests.support.spark.sink_harness import counts, flights, verdict

SCRIPT = Path(__file__).parent / "driver_scripts" / "soak.py"
MINUTES = float(os.environ.get("MAMA_SOAK_MINUTES", "15"))
ROWS_A_SECOND = 400
PATIENCE = 600.0
STREAM = "FLIGHTS"
#: Why a query may fail under these faults, each time to be started again; any other reason is a fault of ours.
EXPECTED = (
    "maximum bytes exceeded",  # rows are refused, and the batch is done again
    "EOFException",  # the process that plans a read was killed
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",  # Spark waits ten seconds for it, which a busy machine may need
    "mama_spark.contracts.errors.Unavailable",  # for longer than the deadlines allow
)
#: MB. Workers share most of it with the process they are forked from; the JVM has a heap of 1 GB.
MOST_PYTHON, MOST_JAVA, MOST_GROWTH = 500, 2_500, 100


class Background:
    """Does something every ``pause`` seconds until it is left; what goes wrong is raised then."""

    def __init__(self, work: Callable[[], object], pause: float) -> None:
        self._work, self._pause = work, pause
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._over.wait(self._pause):
                self._work()
        except BaseException as e:  # noqa: BLE001 - raised where it is noticed
            self._error = e

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error


class FlightFiles:
    """Real flights, a file a second; when the data set has come to its end it begins again. ``n`` numbers the rows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows, self.files = folder, 0, 0
        folder.mkdir()
        self._head, *rows = flight_lines()
        self._source = itertools.cycle(rows)

    def add(self) -> None:
        chosen = itertools.islice(self._source, ROWS_A_SECOND)
        lines = [f"{n},{row}" for n, row in enumerate(chosen, self.rows)]
        hidden = self.folder / f".{self.files:06d}"
        hidden.write_text("\n".join([f"n,{self._head}", *lines, ""]))
        hidden.rename(self.folder / f"{self.files:06d}.csv")
        self.rows += len(lines)
        self.files += 1


@dataclass
class Memory:
    """Resident memory of the driver's processes, MB: the most of each kind, and how far a Python process grew after its
    first minute."""

    python: float = 0.0
    java: float = 0.0
    growth: float = 0.0
    _begin: dict[int, tuple[float, float]] = field(default_factory=dict, repr=False)

    def sample(self, root: int) -> None:
        for pid in descendants(root):
            try:
                java, used = is_java(pid), resident_memory(pid) / 1e6
            except psutil.NoSuchProcess:
                continue  # it has just ended
            if java:
                self.java = max(self.java, used)
                continue
            self.python = max(self.python, used)
            since, first = self._begin.setdefault(pid, (time.monotonic(), used))
            if time.monotonic() - since < 60:
                self._begin[pid] = since, max(first, used)
            else:
                self.growth = max(self.growth, used - first)


class Job(KillableDriver):
    """``driver_scripts/soak.py``, connected through a proxy."""

    def __init__(self, folder: Path, proxy: Proxy) -> None:
        scratch = folder / "tmp"
        scratch.mkdir()
        super().__init__(SCRIPT, folder, PATIENCE, TMPDIR=str(scratch), SPARK_LOCAL_DIRS=str(scratch))
        self.proxy, self.log, self.table = proxy, folder / "log", folder / "table"

    def given(self) -> dict[str, Any]:
        options = {"url": self.proxy.url, "flightLog": str(self.log), "flightLogPayload": "all"}
        return {"ddl": f"n LONG, {DDL}", "folder": str(self.folder), "url": self.proxy.url, "options": options}

    def finish(self) -> None:
        (self.folder / "stop").touch()
        assert self.process.wait(PATIENCE * 2) == 0, self.output.read_text()[-5_000:]

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


class Faults:
    """What goes wrong; each returns when it is over, and the job may need a while to be well again."""

    def __init__(self, chance: random.Random, server: NatsServer, admin: Admin, proxy: Proxy, job: Job) -> None:
        self.chance, self.server, self.admin, self.proxy, self.job = chance, server, admin, proxy, job
        self.kinds: list[Callable[[], None]] = [
            self.broker_killed, self.broker_paused, self.workers_killed, self.driver_killed, self.stream_full,
            self.network_cut, self.network_slow, self.network_silent,
        ]  # fmt: skip

    def _for(self, least: float, most: float) -> None:
        time.sleep(self.chance.uniform(least, most))

    def broker_killed(self) -> None:
        self.server.kill()
        self._for(0, 5)
        self.server.start()

    def broker_paused(self) -> None:
        self.server.pause()
        self._for(1, 10)
        self.server.resume()

    def workers_killed(self) -> None:
        self.job.kill_workers(self.proxy.port)

    def driver_killed(self) -> None:
        self.job.kill(jvm_first=self.chance.random() < 0.5)
        self.job.start()

    def stream_full(self) -> None:
        room = int(self.admin.info(STREAM)["state"]["bytes"]) + 100_000
        self.admin.update_stream(STREAM, max_bytes=room, discard="new")
        self._for(3, 10)
        self.admin.update_stream(STREAM, max_bytes=-1)

    def network_cut(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            self.proxy.cut()
            self._for(0, 1)

    def network_slow(self) -> None:
        self.proxy.slow(self.chance.uniform(0.05, 0.3))
        self._for(3, 10)
        self.proxy.slow(0)

    def network_silent(self) -> None:
        self.proxy.silence()
        self._for(1, 10)
        self.proxy.speak()


def reached(job: Job, stored: Callable[[], int], n: int) -> bool:
    job.runs()
    return stored() >= n


def soak(faults: Faults, job: Job, stored: Callable[[], int], minutes: float) -> Counter[str]:
    """Each kind of fault in turn, in an order that is drawn again and again; how often each came.

    After two faults of three it waits until messages get through again; the third comes on top of the one before.
    """
    until, came = time.monotonic() + 60 * minutes, Counter[str]()
    while time.monotonic() < until:
        for fault in faults.chance.sample(faults.kinds, len(faults.kinds)):
            time.sleep(faults.chance.uniform(0, 10))
            job.runs()
            print(f"{time.strftime('%H:%M:%S')} {fault.__name__}, {stored()} stored", flush=True)
            fault()
            came[fault.__name__] += 1
            if faults.chance.random() < 0.66:
                more = stored() + ROWS_A_SECOND
                eventually(partial(reached, job, stored, more), f"publishing goes on after {fault.__name__}", PATIENCE)
            if time.monotonic() > until:
                break
    return came


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as running:
        yield running


@pytest.mark.explore
@pytest.mark.timeout(7_200)
def test_every_row_is_published_and_read_once_through_a_long_time_of_faults(server: NatsServer, tmp_path: Path) -> None:
    """The conservation law over a long time: whatever is killed, full, cut, slow or silent."""
    seed = int(os.environ.get("MAMA_SOAK_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"MAMA_SOAK_SEED={seed} MAMA_SOAK_MINUTES={MINUTES:g}")
    feed, memory = FlightFiles(tmp_path / "input"), Memory()
    with Admin(server.url) as admin, Proxy(server.url) as proxy:
        admin.create_stream(STREAM, ["flights.>"], duplicate_window=3_600_000_000_000)
        job = Job(tmp_path, proxy)
        faults = Faults(random.Random(seed), server, admin, proxy, job)

        def stored() -> int:
            return int(admin.info(STREAM)["state"]["messages"])

        job.start()
        try:
            with Background(lambda: memory.sample(job.process.pid), 2), Background(feed.add, 1):
                eventually(stored, "publishing begins", PATIENCE)
                came = soak(faults, job, stored, MINUTES)
            job.finish()
            family = descendants(job.process.pid)
        finally:
            job.end()
        print(f"{feed.rows} rows, faults: {dict(came)}, {memory}")
        found = conserved(admin, job, feed.rows)
        print(found)
    assert not family
    assert not connected_to(proxy.port, set(psutil.pids()) - {os.getpid()})
    assert_nothing_is_left_over(job.log)
    assert_failures_are_expected(tmp_path / "failures")
    assert memory.python < MOST_PYTHON, memory
    assert memory.java < MOST_JAVA, memory
    assert memory.growth < MOST_GROWTH, memory


@dataclass
class Held:
    """What the stream holds, read once."""

    stored: list[FetchedMessage]

    def messages(self, name: str, /) -> list[FetchedMessage]:
        return self.stored


def conserved(admin: Admin, job: Job, sent: int) -> Verdict:
    """Acked is at the broker, one outcome a row in the committed attempts, nothing twice; and read exactly once."""
    held = Held(admin.messages(STREAM))
    found = verdict(held, STREAM, job.log, sent=sent).raise_faults()
    assert counts(flights(job.log), "event") == {"acked": sent}
    back = pa.table(DeltaTable(str(job.table)).to_pyarrow_table(columns=["sequence", "topic", "value"]))
    rows = zip(*(back[name].to_pylist() for name in ("sequence", "topic", "value")), strict=True)
    assert Counter(rows) == Counter((m.sequence, m.topic, m.payload) for m in held.stored)
    assert {json.loads(value)["n"] for value in back["value"].to_pylist()} == set(range(sent))
    return found


def assert_nothing_is_left_over(log: Path) -> None:
    """Every part of the flight log is in the table, once those of killed attempts are swept into it."""
    adopt_orphans(str(log), {}, timedelta(0))
    parts = {path.resolve() for path in (log / "parts").rglob("*") if path.is_file()}
    assert parts == {Path(uri.removeprefix("file://")).resolve() for uri in DeltaTable(str(log)).file_uris()}


def assert_failures_are_expected(failures: Path) -> None:
    said = [json.loads(line) for line in failures.read_text().splitlines()] if failures.exists() else []
    reasons = [f"{one['query']}: {one['why'].partition('=== Streaming Query')[0]} {one['cause']}" for one in said]
    print(f"queries failed {len(said)} times")
    assert not [reason for reason in reasons if not any(word in reason for word in EXPECTED)]
