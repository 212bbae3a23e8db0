"""The world ``mamasub``: a query reads a stream of three servers while messages are stored there.

Servers stand still, end, lose their lead and apply their logs late, a new leader answers before it has applied all that
others have; drivers, workers and connections break. Each message is read once, in order, and none is left out; a
snapshot is what was the last message of each topic at its sequence; a batch that is repeated has the same rows.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mama_spark.contracts.errors import DataLost, Unavailable
from mama_spark.spark.subscribe.data_source import batch_reader, schema_for, stream_reader

from ..kernel import Scheduler
from ..network import Link, Network
from ..spark.application import Application, Misfortune, SimTaskContext
from ..spark.queries import Checkpoint, JobFailed
from .node import Message
from .replicated import Cluster
from .world_replicated import change_to_a_late_leader, hurt_a_server

if TYPE_CHECKING:
    from ..worlds import Shape

_RUNS = 6  #: drivers before nothing goes wrong any more
_BUSY = 15.0  #: seconds in which faults begin, at most
_CORES = 2


class Row(NamedTuple):
    """A row that was read."""

    sequence: int
    topic: str
    value: bytes


@dataclass(slots=True)
class _ReadTask:
    """What a worker gets: it reads the partition of its task."""

    reader: Any
    partitions: Sequence[Any]

    def write(self, rows: Iterator[Any]) -> list[Row] | DataLost:
        """The rows, or that some are gone, which is no error of a task here."""
        partition = self.partitions[SimTaskContext.get().partitionId()]
        found: list[Row] = []
        try:
            for batch in self.reader.read(partition):
                columns = (batch.column(name).to_pylist() for name in ("sequence", "topic", "value"))
                found += itertools.starmap(Row, zip(*columns, strict=True))
            list(rows)
        except DataLost as e:
            return e
        return found


@dataclass(slots=True)
class _Query:
    """What a query has read.

    :ivar rows: of each micro-batch, or of the batch read
    :ivar snapshot: sequence whose state it read first; None: it read all
    """

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    snapshot: int | None = None
    violations: list[str] = field(default_factory=list)


class ReadingWorld:
    """One run of the world.

    :ivar current: what is read first is a snapshot
    :ivar compacted: the stream keeps the last message of each topic
    :ivar pauses: seconds between two messages
    :ivar late: until then, the lead moves to a server that is behind once tasks begin to read
    """

    def __init__(self, scheduler: Scheduler, shape: Shape) -> None:
        random = scheduler.random
        self.scheduler, self.query, self.misfortune = scheduler, _Query(), Misfortune()
        self.network = Network(scheduler)
        self.network.usual = Link(random.uniform(0.0001, 0.01), random.uniform(0, 0.01), None, random.choice((0, 0.2)))
        self.cluster = Cluster(scheduler, self.network, random.uniform(0.0001, 0.02), random.uniform(0, 0.02))
        self.cluster.hasty = True
        self.streaming, self.current = random.random() < 0.7, random.random() < 0.5
        self.compacted = self.current and random.random() < 0.4
        config: dict[str, Any] = {"name": "S", "subjects": ["t.>"], "duplicate_window": 10**9}
        if self.compacted:
            config["max_msgs_per_subject"] = 1
        self.cluster.create(config, self.cluster.hosts["n1"].time())
        self.options = {
            "url": ",".join(f"nats://{name}:4222" for name in self.cluster.hosts),
            "stream": "S",
            "waitTimeout": random.choice(("5s", "30s")),
        }
        parts = random.choice(("1", "2", "3"))
        if self.streaming or not self.current:
            self.options["minPartitions"] = parts
        if self.current:
            self.options["latestPerTopic"] = "true"
        if self.streaming:
            self.options["maxOffsetsPerTrigger"] = random.choice(("3", "10", "1000"))
        self.written, self.wanted = 0, 3 * shape.rows
        self.app: Application | None = None
        self.late = 0.0
        self.pauses = random.choice(((0.0, 0.05, 0.1, 0.5), (0.0, 0.01)))
        self.begun = random.uniform(0, 20 * max(self.pauses)) if self.current or not self.streaming else 0.0
        scheduler.spawn("writer", self._write, scheduler.host("writer"))
        scheduler.spawn("operator", self._operate, scheduler.host("operator"))
        for _ in range(2 * shape.faults):
            scheduler.call_at(random.uniform(0, _BUSY), self._fault)

    # --- what goes on ------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Have the leader store messages, as fast as it takes them."""
        scheduler, random = self.scheduler, self.scheduler.random
        while self.written < self.wanted:
            scheduler.sleep(random.choice(self.pauses))
            for name, node in self.cluster.nodes.items():
                if self.cluster.there(name) and self.cluster.replicas[name]["S"].active:
                    message = Message(f"t.{random.randrange(5)}", "", {}, b"", b"message %d" % self.written)
                    node.inbound("S", message)
                    self.cluster.replicate(node)
                    self.written += 1
                    break

    def _operate(self) -> None:
        """Start drivers until all is read."""
        scheduler = self.scheduler
        scheduler.sleep(self.begun)
        for number in itertools.count():
            if number == _RUNS:
                self.misfortune.end()
            self.app = app = Application(scheduler, number, self.misfortune)
            drive = partial(self._stream if self.streaming else self._read_once, app)
            driver = scheduler.spawn("driver", drive, app.host, background=True, expects=(JobFailed,))
            driver.ended.wait(None, "the driver")
            over = not app.host.dead and driver.error is None
            app.end()
            if over:
                return
            scheduler.sleep(scheduler.random.choice((0.0, 0.0, 0.2, 5.0)))

    def _ask(self, app: Application, name: str, question: Callable[[], Any]) -> Any:
        try:
            return app.call(name, question)
        except Unavailable as e:
            raise JobFailed(f"{name}: {e}") from e

    def _tasks(self, app: Application, tasks: bytes) -> list[Row]:
        """The rows of a batch, in the order of its tasks."""
        scheduler, partitions = self.scheduler, pickle.loads(tasks).partitions
        if scheduler.now < self.late:
            self.late = 0.0
            scheduler.call_at(scheduler.now + scheduler.random.uniform(0, 0.2), partial(self.cluster.move, "S"))
        messages, error = app.stage(tasks, [[] for _ in partitions], {})
        if error is not None:
            raise JobFailed(error)
        found: list[Row] = []
        for message in messages:
            rows = pickle.loads(message or b"")
            if isinstance(rows, DataLost):
                raise rows
            found += rows
        return found

    def _read_once(self, app: Application) -> None:
        """A batch read; what an earlier driver has read is gone."""

        def plan() -> tuple[bytes, int | None]:
            reader = batch_reader(self.options, schema_for(self.options), 0, _CORES)
            partitions = reader.partitions()
            return pickle.dumps(_ReadTask(reader, partitions)), partitions[0].range.snapshot if partitions else 0

        tasks, snapshot = self._ask(app, "plan", plan)
        app.step("the read is planned")
        self.query.rows[0], self.query.snapshot = self._tasks(app, tasks), snapshot

    def _stream(self, app: Application) -> None:
        """A streaming query, from its checkpoint on, until it has read all."""
        query, made = self.query, []
        checkpoint = query.checkpoint
        make = partial(stream_reader, self.options, schema_for(self.options), 0, _CORES)
        self._ask(app, "begin", lambda: made.append(make()))
        reader = made[0]
        while True:
            number = checkpoint.next
            app.step(f"batch {number} begins")
            start = checkpoint.offsets[number - 1] if number else self._ask(app, "initialOffset", reader.initialOffset)
            if number not in checkpoint.offsets:
                limit = self._ask(app, "limit", reader.getDefaultReadLimit)
                end = self._ask(app, "latestOffset", partial(reader.latestOffset, start, limit))
                if end == start:
                    if self.written == self.wanted and end["S"]["next"] > len(self._stored()) and self._calm():
                        return
                    self.scheduler.sleep(0.5)
                    continue
                app.step(f"batch {number} ends at {end}")
                checkpoint.offsets[number] = end
                app.step(f"the offsets of batch {number} are written")
            end = checkpoint.offsets[number]
            plan = partial(self._plan, reader, start, end)
            rows = self._tasks(app, self._ask(app, "partitions", plan))
            app.step(f"the tasks of batch {number} have ended")
            if _changes(query.rows.setdefault(number, rows), end) != _changes(rows, end) and not self.compacted:
                query.violations.append(f"batch {number} had {query.rows[number]}, and {rows} when it was repeated")
            query.snapshot = end["S"].get("snapshot")
            app.step(f"the rows of batch {number} are written")
            checkpoint.commits.add(number)

    @staticmethod
    def _plan(reader: Any, start: Any, end: Any) -> bytes:
        return pickle.dumps(_ReadTask(reader, reader.partitions(start, end)))

    def _calm(self) -> bool:
        return self.scheduler.now > _BUSY and all(map(self.cluster.there, self.cluster.hosts))

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        scheduler, random = self.scheduler, self.scheduler.random
        lasts = random.choice((random.uniform(0, 2), random.uniform(0, 15)))
        servers = list(self.cluster.hosts)
        readers = [] if self.app is None else [host.name for host in scheduler.hosts.values() if _reads(host.name)]

        def end_driver() -> None:
            if self.app is not None:
                self.app.end()

        def late_leader() -> None:
            change_to_a_late_leader(scheduler, self.cluster)
            if random.random() < 0.6:  # a driver that knows nothing but its checkpoint asks it
                scheduler.call_at(scheduler.now + random.uniform(0, 1.5), end_driver)

        def late_leader_of_tasks() -> None:
            self.late = scheduler.now + random.uniform(0, 4)
            for name, replicas in self.cluster.replicas.items():
                if not replicas["S"].leads:
                    self.cluster.apply_late(name, self.late - scheduler.now)

        def cut() -> None:
            if readers:
                self.network.cut(random.choice(readers), random.choice(servers))

        def unlucky() -> None:
            name = random.choice(("lost", "zombie", "denied", "speculation", "step", "step"))
            setattr(self.misfortune, name, 0.2)
            scheduler.call_at(scheduler.now + lasts, lambda: setattr(self.misfortune, name, 0.0))

        hurt = partial(hurt_a_server, scheduler, self.cluster, lasts)
        random.choice((hurt, hurt, late_leader, late_leader_of_tasks, cut, unlucky, end_driver))()

    # --- what must be true -------------------------------------------------------------------------------------------

    def _stored(self) -> list[Row]:
        """All that was ever committed, by sequence."""
        replica = max((r["S"] for r in self.cluster.replicas.values()), key=lambda replica: replica.committed)
        messages = (entry.message for entry in replica.log[: replica.committed] if entry.message is not None)
        return [Row(n, message.subject, message.payload) for n, message in enumerate(messages, 1)]

    def check(self) -> Iterator[str]:
        """The violations."""
        query, stored = self.query, self._stored()
        yield from query.violations
        rows = [row for number in sorted(query.rows) for row in query.rows[number]]
        if wrong := sorted(set(rows) - set(stored)):
            yield f"read, and not stored: {wrong}"
        if doubled := [row for row, n in Counter(rows).items() if n > 1]:
            yield f"read more than once: {doubled}"
        if self.current:
            yield from self._of_snapshot(rows, stored, query.snapshot or 0)
            return
        last = len(stored) if self.streaming else max((row.sequence for row in rows), default=0)
        if rows != stored[:last]:
            yield f"of {last} messages were left out {sorted(set(stored[:last]) - set(rows))}; read: {rows}"

    def _of_snapshot(self, rows: list[Row], stored: list[Row], snapshot: int) -> Iterator[str]:
        if not self.streaming:  # as of when its task has read all
            snapshot = max([snapshot, *(row.sequence for row in rows)])
        state = {row.topic: row for row in stored[:snapshot]}
        if not self.streaming:
            if sorted(rows) != sorted(state.values()):
                yield f"at {snapshot} was {sorted(state.values())}, read was {rows}"
            return
        first = [row for row in rows if row.sequence <= snapshot]
        last = {row.topic: row for row in stored}
        missing = [row for row in state.values() if row not in first and last[row.topic] == row]
        if missing or not set(first) <= set(state.values()):
            yield f"at {snapshot} was {sorted(state.values())}, read was {first}"
        changes, after = rows[len(first) :], stored[snapshot:]
        wanted = [row for row in after if not self.compacted or last[row.topic] == row]
        if changes != sorted(changes) or not set(wanted) <= set(changes) or first != rows[: len(first)]:
            yield f"after {snapshot} came {wanted}, read was {changes}"


def _changes(rows: list[Row], end: dict[str, Any]) -> list[Row]:
    """Rows behind the snapshot: of that, what has changed since is left out."""
    return [row for row in rows if row.sequence > end["S"].get("snapshot", 0)]


def _reads(host: str) -> bool:
    return host.startswith(("driver", "worker"))


def mamasub(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Build it."""
    return ReadingWorld(scheduler, shape).check
