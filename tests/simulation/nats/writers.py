"""A batch that is written with ``exactlyOnce``, as Spark does it: runs of it, partitions, attempts, one after another
or at the same time, each a process of the product on a host of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from mama_spark.contracts.errors import MamaError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.ledger import NatsBatchLedger
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.exactly_once.partition_leases import RENEWAL
from mama_spark.publishing.exactly_once.protocol import Attempt, Superseded, task_marker
from mama_spark.publishing.exactly_once.read_back import DataRemoved
from mama_spark.publishing.exactly_once.session import BatchSession, Rules
from mama_spark.publishing.ids.ids import IdMaker
from mama_spark.publishing.outage_reporter import retry_while_unavailable
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.spark.sink.last_form import GiveIds
from mama_spark.spark.sink.match import MatchStored
from mama_spark.spark.sink.stages import SinkBatch, through

from ..jetstream_rules import Stream
from ..kernel import Host, Process, Scheduler, active

#: Topic and payload.
Row = tuple[str, bytes]
LEASE = 5.0
_ATTEMPTS = 4
_IDS_MEMORY = 1 << 14


class _Ledger(NatsBatchLedger):
    """Tells when it writes a marker."""

    def __init__(self, settings: NatsSettings, timeout: float, writing: dict[str, Callable[[], None]]) -> None:
        super().__init__(settings, timeout)
        self._writing = writing

    def set_marker(self, key: str, value: bytes, revision: int) -> int:
        self._writing.pop(active().here.name, lambda: None)()
        return super().set_marker(key, value, revision)


class NotAllStored(Exception):
    """An attempt ends, and some of its rows are not acknowledged: it is repeated."""


@dataclass(slots=True)
class Write:
    """One batch, until a run of it is committed.

    :ivar acked: payloads that attempts have reported as acknowledged, of the run that was committed
    :ivar committed: all partitions of a run have succeeded
    :ivar executors: hosts of attempts that have not ended
    :ivar failing: names of those whose rows end with an error; ``given_up``: of those that Spark takes for lost
    :ivar stopped: names of those that send nothing any more
    :ivar armed: what happens when the next rows are put, to the executor that does
    :ivar renewing: what happens when an executor next writes a marker, by its name
    :ivar doubled: payloads that were stored more often than there are rows, at any time
    """

    scheduler: Scheduler
    settings: NatsSettings
    rows: Sequence[Row]
    partitions: int
    lease: float = LEASE
    acked: Counter[bytes] = field(default_factory=Counter)
    committed: bool = False
    executors: dict[str, Host] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    armed: list[Callable[[Host], None]] = field(default_factory=list)
    renewing: dict[str, Callable[[], None]] = field(default_factory=dict)
    doubled: Counter[bytes] = field(default_factory=Counter)
    _attempts: list[Process] = field(default_factory=list)
    _run: int = 0
    _driver: Host | None = None
    _left: set[int] = field(default_factory=set)
    _parts: int = 0

    @property
    def counted_on(self) -> bool:
        """A partition of the present run has succeeded."""
        return len(self._left) < self._parts

    def start_run(self) -> None:
        """A driver begins the batch, or begins it again: in another order, and perhaps other partitions."""
        if self.committed or (self._driver is not None and not self._driver.dead):
            return
        scheduler, random = self.scheduler, self.scheduler.random
        self._run += 1
        self.acked.clear()
        rows = list(self.rows)
        random.shuffle(rows)
        n = self.partitions if self._run == 1 else max(1, self.partitions + random.choice((-1, 0, 1)))
        self._driver, self._left, self._parts = scheduler.host(f"driver{self._run}"), set(range(n)), n
        for p in range(n):
            task = partial(self._task, self._run, p, rows[p::n])
            scheduler.spawn(f"task {p}", task, self._driver, background=True)

    def end_run(self) -> None:
        """The driver is killed; its executors end later."""
        if self.committed or self._driver is None or self._driver.dead:
            return
        scheduler, random = self.scheduler, self.scheduler.random
        scheduler.kill(self._driver)
        for host in self.executors.values():
            lasts = random.uniform(0, random.choice((3, 40)))
            scheduler.call_at(scheduler.now + lasts, partial(self._kill, host))

    def _kill(self, host: Host) -> None:
        if not host.dead:
            self.scheduler.kill(host)

    def _task(self, run: int, partition: int, rows: list[Row]) -> None:
        """Attempt after attempt, until one succeeds; one that stands still may be left, and another one begun."""
        scheduler, number = self.scheduler, 0
        while True:
            number += 1
            host = scheduler.host(f"executor{run}.{partition}.{number}")
            host.ahead, host.rate = scheduler.random.uniform(-60, 60), scheduler.random.uniform(0.97, 1.03)
            self.executors[host.name] = host
            acked: Counter[bytes] = Counter()
            expects = (MamaError, NotAllStored)
            attempt = partial(self._attempt, run, partition, rows[:], acked)
            process = scheduler.spawn("attempt", attempt, host, background=True, expects=expects)
            self._attempts.append(process)
            self._await(process)
            if process.done:
                self.executors.pop(host.name, None)
                if process.error is None and not host.dead:
                    break
            if isinstance(process.error, Superseded | DataRemoved) and number >= _ATTEMPTS:
                # the query fails, and is begun again
                scheduler.call_at(scheduler.now + 1.0, self.start_run)
                self.end_run()
                return
            if number % 2:
                scheduler.random.shuffle(rows)
            scheduler.sleep(scheduler.random.choice((0.0, scheduler.random.uniform(0, 2))))
        if run == self._run:
            self.acked += acked
            self._left.discard(partition)
            self.committed = not self._left

    def _await(self, process: Process) -> None:
        """Until it has ended, or has stood still for so long that it is given up; or is given up while it goes on."""
        random = self.scheduler.random
        patience, unsure = random.uniform(4, 20), random.random() < 0.2
        while not process.done:
            process.ended.wait(1.0)
            patience = patience - 1.0 if unsure or process.host.frozen else patience
            if patience <= 0 or process.host.name in self.given_up:
                return

    # --- one attempt, on the host of an executor ---------------------------------------------------------------------

    def _attempt(self, run: int, partition: int, rows: list[Row], acked: Counter[bytes]) -> None:
        """As :func:`mama_spark.spark.sink.open_write.open_write` puts it together."""
        scheduler, batch = self.scheduler, 7
        ids = IdMaker("w", batch, partition, _IDS_MEMORY)
        me = Attempt("w", batch, f"r{run}", partition, f"o{scheduler.unique()}", ids.prefix, "one message a row")
        bridge = NatsBridge(self.settings)
        ledger = _Ledger(self.settings, 30.0, self.renewing)
        session = BatchSession(ledger, me, Rules(self.lease, wait=True), bridge.sent_to)
        random = scheduler.random
        policy = WindowConfig(8, 4, random.choice((1.0, 5.0)), RetryPolicy.doubling(0.25, 5.0, 90.0))
        chunk, pause, here = random.choice((1, 3, 8)), random.choice((0.2, 2.0, 8.0)), scheduler.here.name
        failed: list[FlightBatch] = []

        def on_finished(flights: FlightBatch) -> None:
            assert flights.messages is not None
            payloads = flights.messages.payloads.to_pylist()
            acked.update(payloads[row] for row in (flights.state == FlightState.ACKED).nonzero()[0].tolist())
            if (flights.state != FlightState.ACKED).any():
                failed.append(flights)

        def connect() -> WindowConfig:
            retry_while_unavailable(lambda: self._open(bridge, rows), wait=True, say="no answer: %s")
            return policy.for_bridge(bridge.capabilities, with_ids=True)

        publisher = BatchPublisher(
            bridge,
            policy,
            on_finished=on_finished,
            config=BatchConfig(on_outage=OnOutage.WAIT, poll_time=random.choice((0.1, 1.0))),
            hooks=BatchHooks(open_bridge=connect),
            guard=session,
        )
        try:
            publisher.start()
            session.open()
            stages = [MatchStored(session, ids.prefix, None), GiveIds(ids, session.free_numbers)]
            for batch_of_rows in _batches(rows, chunk):
                if self.armed:
                    self.armed.pop()(scheduler.here)
                for one in through(stages, batch_of_rows):
                    publisher.put(one.messages, one.rejected, None, one.stored)
                slower = random.uniform(0, 4 if here in self.given_up else 0.5 if here in self.failing else 0.0)
                scheduler.sleep(random.choice((0.0, 0.0, pause)) + slower)
                if here in self.failing:
                    raise NotAllStored
            publisher.drain()
        finally:
            publisher.stop()
            self.stopped.add(here)
            bridge.close()
            if here in self.failing:
                scheduler.sleep(self.lease * RENEWAL)  # its log is written, and its marker renewed meanwhile
            session.close()
        if failed:
            raise NotAllStored

    @staticmethod
    def _open(bridge: NatsBridge, rows: list[Row]) -> None:
        try:
            bridge.open()
            bridge.prepare(_messages(rows))
        except Unavailable:
            bridge.close()
            raise

    # --- what must be true -------------------------------------------------------------------------------------------

    def query(self, calm: Callable[[], bool], after: float) -> None:
        """Waits until the batch is committed and no attempt goes on, and on until all that is on its way has arrived:
        the foreground."""
        self.scheduler.wait(lambda: self.committed and calm() and not self._at_work, what="the commit")
        self.scheduler.sleep(after)

    @property
    def _at_work(self) -> bool:
        self._attempts = [one for one in self._attempts if not one.host.dead]
        return not all(one.done for one in self._attempts)

    def watch(self, streams: Sequence[Stream]) -> None:
        """Look each second whether a payload is stored more often than its rows."""
        rows = Counter(payload for _, payload in self.rows)
        while True:
            self.scheduler.sleep(1.0)
            for stream in streams:
                self.doubled |= Counter(m.payload for m in stream.messages.values() if m.payload in rows) - rows

    def violations(self, stored: Counter[bytes]) -> Iterator[str]:
        """Each row is stored once, and was acknowledged once."""
        rows = Counter(payload for _, payload in self.rows)
        if self.acked != rows:
            yield f"acknowledged: missing {_text(rows - self.acked)}, too many {_text(self.acked - rows)}"
        if lost := rows - stored:
            yield f"acknowledged and not stored: {_text(lost)}"
        if doubled := self.doubled | (stored - rows):
            yield f"stored more than once: {_text(doubled)}"

    def left(self, markers: Stream | None, now: float) -> Iterator[str]:
        """What attempts that have ended have left on hosts that live, and partitions that somebody still owns.

        :param markers: the stream of the markers
        """
        for host in (attempt.host for attempt in self._attempts if not attempt.host.dead):
            pool = host.globals["mama_spark.nats.connection.pool.POOL"]
            idle = [one.connection for waiting in pool._idle.values() for one in waiting]
            if (n := len(self.scheduler.network.open_ends(host))) > len(idle):
                yield f"{host.name} has {n} connections, and {len(idle)} in its pool"
            if waits := [len(connection.answers) for connection in idle if len(connection.answers)]:
                yield f"{host.name} waits for {waits} answers over connections in its pool"
        for marker in [] if markers is None else markers.messages.values():
            task = task_marker(marker.payload) if ".task." in marker.subject else None
            if task is not None and not task.released and now < marker.time + self.lease:
                yield f"{marker.subject} is still renewed"


def _text(rows: Counter[bytes]) -> str:
    return str(sorted(rows.items()))


def _messages(rows: Sequence[Row]) -> MessageBatch:
    return MessageBatch.of([topic for topic, _ in rows], [payload for _, payload in rows])


def _batches(rows: list[Row], size: int) -> Iterator[SinkBatch]:
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        yield SinkBatch(_messages(some), [], np.arange(first, first + len(some)))
