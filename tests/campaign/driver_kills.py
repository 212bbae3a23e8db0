"""Streams from both sources into Delta tables while their driver is killed every few seconds.

``python -m tests.campaign.driver_kills [--minutes N] [--seed N] [--folder DIR]``. In the end all that is stored is
read, and the tables are held against what plain nats-py reads: each message exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nats
from deltalake import DeltaTable
from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama.messages.event_records import EventRecord, encode_event
from mama_spark.mama.messages.omnm import encode
from mama_spark.nats.server.nats_server import NatsServer
from nats.js.api import AckPolicy, ConsumerConfig

from tests.campaign.brokers import SUBJECTS
from tests.campaign.configurations import STREAM
from tests.campaign.job import Job, program
from tests.campaign.oracle import READER_TTL
from tests.support.mama.discovery_harness import BOARD, ForeignAnnouncer, create_streams, desk
from tests.support.nats.nats_servers import Admin

#: Messages of each source that are published at once, and seconds between.
CHUNK, BETWEEN = 20, 0.25
#: Seconds from the start of a driver to its end.
SHORTEST, LONGEST = 2.0, 40.0
EVENTS = "MAMA_EVENTS"
#: Seconds for a driver that works undisturbed, also on a busy machine.
TIMEOUT = 1_200.0
#: Kinds of rows of discovery that are made of one message each.
OF_MESSAGES = ("topic", "source", "publisher")


@dataclass(frozen=True)
class Comparison:
    """Of a table with the stream that it was made from: numbers of messages.

    :ivar stored: that the table must have
    """

    source: str
    stored: int
    lost: int
    doubled: int
    foreign: int

    def __str__(self) -> str:
        return f"{self.source}: {self.stored} stored, lost {self.lost}, doubled {self.doubled}, foreign {self.foreign}"

    @property
    def wrong(self) -> bool:
        return bool(self.lost or self.doubled or self.foreign or not self.stored)


@dataclass(frozen=True)
class Outcome:
    """
    :ivar starts: of a driver; ``alive``: of those that had written to a table before they were killed
    """

    comparisons: tuple[Comparison, ...]
    starts: int
    alive: int
    seconds: float


class Traffic(threading.Thread):
    """Publishes to both streams until it is stopped. ``published``: how many messages of each."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._over, self.published = url, threading.Event(), 0

    def run(self) -> None:
        with ForeignAnnouncer(self._url) as client:
            while not self._over.is_set():
                numbers = range(self.published, self.published + CHUNK)
                client.publish_all([(f"campaign.{n % 3}", b"%d" % n, None) for n in numbers])
                source = SourceKey("desk", 7)
                client.publish_all([(BOARD.event_subject(source), _event(n), None) for n in numbers])
                client.say(desk(self.published % 5))
                self.published += CHUNK
                self._over.wait(BETWEEN)

    def stop(self) -> None:
        self._over.set()
        self.join()


def _event(number: int) -> bytes:
    return encode(encode_event(EventRecord("topic", "PUBLISH_CREATE", number, topic=f"t.{number}", publisher="p")))


def kill_drivers_and_compare(folder: Path, seed: int, minutes: float) -> Outcome:
    """Publish, read, kill; then read the rest and compare.

    :param folder: for everything that it makes
    """
    chance, began, alive = random.Random(seed), time.monotonic(), 0
    folder.mkdir(parents=True, exist_ok=True)
    with NatsServer(folder / "nats") as server:
        create_streams(server.url)
        with Admin(server.url) as admin:
            admin.create_stream(STREAM, SUBJECTS)
        given, output = {"url": server.url, "folder": str(folder)}, folder / "driver.out"
        job = Job(lambda: program("tests.campaign.sources_driver", given, output), output, sys.maxsize)
        try:
            with _traffic(server.url):
                while time.monotonic() < began + 60 * minutes:
                    before = _versions(folder)
                    job.start()
                    _run_for_a_while(job, folder, before, chance)
                    alive += _versions(folder) != before
                    job.kill(whole=True)
            (folder / "stop").touch()
            job.finish(TIMEOUT)
        finally:
            job.end()
        found = (
            _compare("mamasub", asyncio.run(_sequences(server.url, STREAM)), folder, STREAM),
            _compare("mamadiscovery", asyncio.run(_sequences(server.url, EVENTS)), folder, EVENTS),
        )
    return Outcome(found, job.runs, alive, time.monotonic() - began)


@contextlib.contextmanager
def _traffic(url: str) -> Iterator[None]:
    traffic = Traffic(url)
    traffic.start()
    try:
        yield
    finally:
        traffic.stop()


def _run_for_a_while(job: Job, folder: Path, before: list[int], chance: random.Random) -> None:
    """For a few seconds; of two drivers, one at least until both tables grow, and a moment longer."""
    until = time.monotonic() + chance.uniform(SHORTEST, LONGEST)
    working = chance.random() < 0.5
    while time.monotonic() < until or working:
        assert job.running, f"the driver ended: {job.last_output()}"
        if all(now > then for now, then in zip(_versions(folder), before, strict=True)):
            time.sleep(chance.uniform(0, 4))
            return
        assert time.monotonic() < until + TIMEOUT, f"the tables do not grow: {job.last_output()}"
        time.sleep(0.1)


def _versions(folder: Path) -> list[int]:
    """How many commits each of the tables has."""
    return [len(list((folder / source / "_delta_log").glob("*.json"))) for source in ("mamasub", "mamadiscovery")]


async def _sequences(url: str, stream: str) -> set[int]:
    """The numbers of all messages of a stream that are published by somebody, not marks of readers."""
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream(timeout=10)
        left = int((await jetstream.stream_info(stream)).state.messages)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, inactive_threshold=READER_TTL)
        reader = await jetstream.pull_subscribe("", stream=stream, config=config)
        found: set[int] = set()
        while left:
            messages = await reader.fetch(min(1_000, left), timeout=10)
            left -= len(messages)
            found |= {m.metadata.sequence.stream for m in messages if _is_published(m.subject)}
        await reader.unsubscribe()
    finally:
        await client.close()
    return found


def _is_published(subject: str) -> bool:
    return subject.startswith(("campaign.", f"{BOARD.topic}.event.")) or subject.endswith(".rec")


def _compare(source: str, stored: set[int], folder: Path, stream: str) -> Comparison:
    column = "origin" if source == "mamadiscovery" else "stream"
    wanted = [column, "sequence", *["kind"] * (source == "mamadiscovery")]
    rows = DeltaTable(str(folder / source)).to_pyarrow_table(columns=wanted).to_pylist()
    held = Counter(row["sequence"] for row in rows if row[column] == stream and row.get("kind", "topic") in OF_MESSAGES)
    return Comparison(
        source, len(stored), len(stored - set(held)), sum(held.values()) - len(held), len(set(held) - stored)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills the driver of both sources, and looks what the tables hold.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the moments; else drawn")
    parser.add_argument("--folder", type=Path, help="for what it makes")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="driver-kills-"))
    outcome = kill_drivers_and_compare(folder, seed, given.minutes)
    for comparison in outcome.comparisons:
        print(comparison)
    print(f"seed {seed}, {outcome.seconds / 60:.1f} minutes, {outcome.starts} drivers, {outcome.alive} of them wrote")
    return 1 if any(one.wrong for one in outcome.comparisons) else 0


if __name__ == "__main__":
    sys.exit(main())
