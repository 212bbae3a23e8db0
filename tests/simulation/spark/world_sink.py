"""The world ``sink``: the whole sink, from the rows of Spark to the flight log, while everything may end or fail.

A streaming query, or batch writes with ``txnAppId``, whose driver is started again until all is committed. Then the
flight log is held against the rows and against the stream.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from mama_spark.spark.sink.data_source import batch_writer, stream_writer
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from ..jetstream_api import JetStream
from ..jetstream_rules import REFUSALS, Stored
from ..kernel import Host, Process, Scheduler
from ..network import Link, Network
from ..sockets import ServerPort
from ..stream_server import StreamServer
from .application import Application, Misfortune
from .delta import foreign_commit
from .queries import Checkpoint, JobFailed, run_stream, write_batch
from .storage import Storage

if TYPE_CHECKING:
    from ..worlds import Shape

LOG, LETTERS = "s3://simulated/log", "s3://simulated/letters"
_SCHEMA = StructType().add("topic", StringType()).add("value", BinaryType()).add("key", LongType())
_RUNS = 5  #: drivers before nothing goes wrong any more

Rows = Sequence[int]


class SinkWorld:
    """One run of the world.

    :ivar batches: the rows of each micro-batch, or of each batch write
    :ivar fixed: each repetition has the same rows in the same partitions
    :ivar bad: rows that no server takes
    :ivar notes: of each write that has ended: what the product has told the driver
    :ivar refused: rows may fail with which nothing is wrong
    """

    def __init__(self, scheduler: Scheduler, shape: Shape, *, streaming: bool, once: bool = False) -> None:
        random = scheduler.random
        self.scheduler, self.streaming, self.once = scheduler, streaming, once
        self.network, self.storage, self.jetstream = Network(scheduler), Storage(scheduler), JetStream()
        self.network.usual = Link(random.uniform(0.0001, 0.01), random.uniform(0, 0.005), None, random.choice((0, 0.2)))
        self.storage.latency = random.choice((0.0, 0.02, 0.2))
        self.nats = scheduler.host("nats")
        window = random.choice((10, 120)) if once else 120
        self.stream = self.jetstream.create("S", ["t.>"], self.nats.time(), duplicate_window=window * 1_000_000_000)
        self.start_server()
        cuts = sorted(random.sample(range(1, shape.rows), min(random.randrange(3), shape.rows - 1)))
        keys = list(range(shape.rows))
        self.batches = [keys[a:b] for a, b in itertools.pairwise((0, *cuts, shape.rows))]
        self.partitions = min(shape.partitions, random.choice((1, 2, 4)))
        self.fixed = random.random() < 0.5
        self.checkpoint = Checkpoint()
        self.app: Application | None = None
        self.notes: list[dict[str, Any]] = []
        self.refused = False
        self.misfortune = Misfortune()
        self.options = {
            "url": "nats://nats:4222",
            "flightLog": LOG,
            "flightLogColumns": "key",
            "ackMode": "message",
            "maxInFlight": "8",
            "waitTimeout": "2s",
            "retryDeadline": random.choice(("4s", "20s")),
            "onUnavailable": random.choice(("wait", "fail")),
        }
        self.bad: set[int] = set()
        if random.random() < 0.4:
            self.bad = set(random.sample(keys, min(len(keys), random.randrange(4))))
            self.options["onError"] = random.choice(("log", "deadletter"))
            if self.options["onError"] == "deadletter":
                self.options["deadLetterTable"] = LETTERS
        elif random.random() < 0.4:
            self.options |= random.choice(({"pack": "lines", "packMaxRows": "3"}, {"order": "partition"}))
            self.fixed |= "order" in self.options
        if once:
            self.options["exactlyOnce"] = "true"
        for _ in range(shape.faults):
            self._plan_fault()
        scheduler.spawn("operator", self._operate, scheduler.host("operator"))

    def start_server(self) -> None:
        """Start the server, or start it again: what it had stored is there, and what was in memory is gone."""
        nats, jetstream = self.nats, self.jetstream
        self.scheduler.restart(nats)
        jetstream.consumers.clear()
        tell = (lambda text: self.scheduler.trace(text, "nats")) if self.scheduler.tracing else None
        self.server = StreamServer("nats", jetstream, lambda _: nats.time(), tell, life=nats.life)
        ServerPort(self.network, nats, self.server)

    # --- what goes on ------------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        """Start drivers until all is committed."""
        scheduler = self.scheduler
        for number in itertools.count():
            if number == _RUNS:
                self.misfortune.end()
            self.app = app = Application(scheduler, number, self.misfortune)
            drive = partial(self._drive, app, number)
            driver = scheduler.spawn("driver", drive, app.host, background=True, expects=(JobFailed,))
            driver.ended.wait(None, "the driver")
            self.notes += app.notes
            if self.checkpoint.next >= len(self.batches) and not app.host.dead:
                break
            app.end()
            scheduler.sleep(scheduler.random.choice((0.0, 1.0, 15.0)))
        scheduler.wait(lambda: not self._at_work(), 200.0, "tasks and threads that are left")

    def _drive(self, app: Application, number: int) -> None:
        if self.streaming:
            run_stream(
                app, self.checkpoint, lambda: stream_writer(self.options, _SCHEMA, False), "query", f"run{number}",
                self._arranged, len(self.batches),
            )  # fmt: skip
            return
        while (version := self.checkpoint.next) < len(self.batches):
            options = {**self.options, "txnAppId": "nightly", "txnVersion": str(version)}
            make = partial(batch_writer, options, _SCHEMA, False)
            write_batch(app, make, f"write {version}", self._arranged(version), {})
            self.checkpoint.commits.add(version)

    def _arranged(self, batch: int) -> list[list[pa.RecordBatch]]:
        """The rows of a batch in partitions, as a run finds them."""
        random, keys, n = self.scheduler.random, list(self.batches[batch]), self.partitions
        if not self.fixed:
            random.shuffle(keys)
            n = random.choice((1, 2, 4))
        parts = [keys[i::n] for i in range(n)]
        if self.fixed and "order" not in self.options and random.random() < 0.5:
            for part in parts:
                random.shuffle(part)
        size = random.choice((3, 100))
        return [[self._rows(part[at : at + size]) for at in range(0, len(part), size)] for part in parts]

    def _message(self, key: int) -> tuple[str, bytes]:
        return "no topic" if key in self.bad else f"t.{key % 3}", b"row %d" % key

    def _rows(self, keys: Rows) -> pa.RecordBatch:
        topics, values = zip(*map(self._message, keys), strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(topics, pa.string()), pa.array(values, pa.binary()), pa.array(keys, pa.int64())],
            ["topic", "value", "key"],
        )

    def _at_work(self) -> list[Process]:
        """Processes of the product that have not ended, on hosts that live."""
        known = (p for p in self.scheduler.processes if p.background and not p.done and not p.host.dead)
        return [p for p in known if p.host is not self.nats]

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _plan_fault(self) -> None:
        """One thing that goes wrong, once or for a while."""
        scheduler, random, storage, unlucky = self.scheduler, self.scheduler.random, self.storage, self.misfortune
        at, lasts = 10 ** random.uniform(-2.5, 0.7), random.choice((1.0, 8.0)) * random.random()

        def chance(of: Any, name: str, value: Any) -> tuple[Callable[[], None], Callable[[], None]]:
            def begin() -> None:
                scheduler.trace_fault(name, f"= {value}")
                setattr(of, name, value)

            return begin, lambda: setattr(of, name, type(value)(0))

        kinds: Sequence[Callable[[], tuple[Callable[[], None], Callable[[], None]]]] = (
            lambda: (lambda: self.network.cut(self._worker().name, "nats"), _nothing),
            lambda: (lambda: self.network.half_open(self._worker().name, "nats"), _nothing),
            lambda: self._held(),
            lambda: (lambda: scheduler.freeze(self.nats), self._thaw_server),
            lambda: (lambda: scheduler.kill(self.nats), lambda: self.start_server() if self.nats.dead else None),
            lambda: self._frozen(),
            lambda: self._refusing(),
            lambda: self._spoiling(),
            lambda: (self._end_driver, _nothing),
            lambda: (lambda: foreign_commit(storage, LOG), lambda: foreign_commit(storage, LOG)),
            lambda: chance(storage, "away", True),
            lambda: chance(storage, "full", True),
            lambda: chance(storage, "lost", random.choice((0.1, 0.4, 0.9))),
            lambda: chance(storage, "late", 20.0),
            *(
                (lambda name=name: chance(unlucky, name, 0.3))
                for name in ("upstream", "lost", "zombie", "denied", "speculation", "step")
            ),
        )
        begin, end = random.choice(kinds)()
        scheduler.call_at(at, begin)
        scheduler.call_at(at + lasts, end)

    def _thaw_server(self) -> None:
        if not self.nats.dead:
            self.scheduler.thaw(self.nats)

    def _worker(self) -> Host:
        """One of the workers that live; without one a host that has none."""
        workers = [host for host in (() if self.app is None else self.app.workers) if not host.dead]
        return self.scheduler.random.choice(workers) if workers else self.scheduler.host("nobody")

    def _held(self) -> tuple[Callable[[], None], Callable[[], None]]:
        held: list[tuple[str, str]] = []

        def begin() -> None:
            ways = [(self._worker().name, "nats")]
            ways.append(ways[0][::-1])
            held.extend(self.scheduler.random.choice((ways[:1], ways[1:], ways)))
            for way in held:
                self.network.hold(*way)

        def end() -> None:
            for way in held:
                self.network.release(*way)

        return begin, end

    def _refusing(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The stream refuses all messages."""
        refusal = self.scheduler.random.choice(REFUSALS)

        def begin() -> None:
            self.scheduler.trace_fault("refuse", refusal[2])
            self.stream.refuses = refusal
            self.refused = True

        return begin, lambda: setattr(self.stream, "refuses", None)

    def _spoiling(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Acknowledgements are lost, come twice, or in another order."""
        what = self.scheduler.random.choice(("lost", "every other", "doubled", "reordered"))

        def begin() -> None:
            self.scheduler.trace_fault("acknowledgements", what)
            self.server.answers = what
            self.refused = True

        return begin, lambda: setattr(self.server, "answers", None)

    def _frozen(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """A worker stands still."""
        frozen: list[Host] = []

        def begin() -> None:
            frozen.append(self._worker())
            self.scheduler.freeze(frozen[0])

        return begin, lambda: self.scheduler.thaw(frozen[0])

    def _end_driver(self) -> None:
        if self.app is not None:
            self.app.end()

    # --- what must be true -------------------------------------------------------------------------------------------

    def check(self) -> Iterator[str]:
        """The violations."""
        committed, others = (self._outcomes(which) for which in (True, False))
        for number, keys in enumerate(self.batches):
            found = Counter(row["key"] for row in committed if row["batch_id"] == number)
            if found != Counter(keys):
                yield f"batch {number}: rows {_but(keys, found)} have no outcome, {_but(found, keys)} several or others"
        if "deadLetterTable" in self.options:
            yield from self._wrong_letters({(r["batch_id"], r["key"]) for r in committed if r["event"] != "acked"})
        may_fail = self.refused and "onError" in self.options
        for row in committed:
            if (row["key"] in self.bad) if row["event"] == "acked" else (row["key"] not in self.bad and not may_fail):
                yield f"row {row['key']} of a committed batch is {row['event']}"
        runs = {(row["batch_id"], row["run_id"]) for row in committed}
        for note in self.notes:
            if (note["committed"] or note["repeats"]) and ((note["batch_id"], note["run_id"]) in runs) is note[
                "repeats"
            ]:
                yield f"batch {note['batch_id']}, {note['run_id']}: the note says committed={note['committed']}"
        messages = self.stream.messages
        for row in (*committed, *others):
            if row["event"] == "acked":
                stored = messages.get(row["sequence"])
                if stored is None or self._message(row["key"]) not in _rows_of(stored):
                    yield f"row {row['key']} is acked at {row['sequence']}, where {stored} is"
        sent = Counter(self._message(key) for keys in self.batches for key in keys)
        kept = Counter(row for m in messages.values() for row in _rows_of(m))
        if more := _but(kept, sent if self.stored_once else {row: kept[row] for row in sent}):
            yield f"stored more than once, or not sent: {more}"
        if less := _but({self._message(row["key"]) for row in committed if row["event"] == "acked"}, kept):
            yield f"not stored: {less}"
        if "order" in self.options:
            yield from self._overtaken(committed)
        for process in self._at_work():
            yield f"{process.name} on {process.host.name} goes on: {process.waits_for}"

    def _wrong_letters(self, failed: set[tuple[int, int]]) -> Iterator[str]:
        letters = Counter((row["batch_id"], row["key"]) for row in self.storage.rows(LETTERS, True))
        if letters != Counter(failed):
            yield f"dead letters: {_but(failed, letters)} are missing, {_but(letters, failed)} are too many"

    def _overtaken(self, committed: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Rows that were stored before an earlier one of their partition."""
        at = {row["key"]: row["sequence"] for row in committed}
        for keys in self.batches:
            for mine in (keys[i :: self.partitions] for i in range(self.partitions)):
                if (where := [at[key] for key in mine if key in at]) != sorted(where):
                    yield f"rows {mine} are stored as {where}"

    def _outcomes(self, committed: bool) -> list[dict[str, Any]]:
        flights = (row for row in self.storage.rows(LOG, committed) if row["kind"] == "flight")
        return [{**row, **one} for row in flights for one in row.get("packed") or [{}]]

    @property
    def stored_once(self) -> bool:
        """Whether ids and the window promise that."""
        return self.once or (self.fixed and "pack" not in self.options)


def _nothing() -> None: ...


def _rows_of(message: Stored) -> list[tuple[str, bytes]]:
    return [(message.subject, value) for value in message.payload.split(b"\n")]


def _but(some: Iterable[Any] | Mapping[Any, int], others: Iterable[Any] | Mapping[Any, int]) -> list[Any]:
    return sorted((Counter(some) - Counter(others)).elements())


def sink(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """A streaming query: each row of each batch has one outcome in the log, and is stored."""
    return SinkWorld(scheduler, shape, streaming=True).check


def sink_batch(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """The same for batch writes with ``txnAppId`` and ``txnVersion``."""
    return SinkWorld(scheduler, shape, streaming=False).check


def sink_once(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Either with ``exactlyOnce``: each row is stored once, whatever partitions a repetition has."""
    return SinkWorld(scheduler, shape, streaming=scheduler.random.random() < 0.7, once=True).check
