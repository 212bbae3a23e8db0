"""The world ``recorder``: a recorder writes into a log what its source receives, and a follower reads that log.

The log fails in many ways; recorder and follower are killed and begin again. Of each run of the recorder the log has
the first records, all of them where it ended in order, each once and in order, and a gap in the place of those that it
rejected for good; the follower has seen what the log has, once and in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mama_spark.contracts.errors import ConfigError, MamaError, PublishError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import ReadLog
from mama_spark.memory.bridge import MemoryBridge
from mama_spark.memory.broker import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.publishing.resilient_publisher import ResilientPublisher
from mama_spark.publishing.window.reconnecting import ReconnectingBridge
from mama_spark.recording.log_follower import LogFollower
from mama_spark.recording.log_position import LogPosition, first_position
from mama_spark.recording.recorder import Recorder, RecorderCounts, RecorderSettings

from .kernel import Scheduler

if TYPE_CHECKING:
    from .worlds import Shape

_FAULTS = ("lose", "drop", "late", "503", "429", "409", "disconnect", "kill", "full", "dup", "unknown", "reject")
_LASTS = 10.0  #: seconds in which faults begin


@dataclass(frozen=True)
class _Settings:
    middleware: ClassVar[str] = "simulated"
    name: str = "recorder"
    report: float = 5.0
    metrics: str | None = None
    drain: float = 60.0
    subject: tuple[Sequence[str], str, str] = ((), "", "")

    @property
    def labels(self) -> dict[str, str]:
        return {}


class _Source:
    """Records that are numbered in each run of the recorder; of a rejected one a gap says which it was.

    :ivar made: numbers of the records that were made
    """

    settings_class: ClassVar[type[RecorderSettings]] = _Settings

    def __init__(self, scheduler: Scheduler, run: int, rows: int) -> None:
        self._scheduler, self._run, self._left = scheduler, run, rows
        self.settings: RecorderSettings = _Settings()
        self.made = 0
        self._rejected = deque[bytes]()
        self._stopped = False

    @property
    def waiting(self) -> int:
        return 0

    def _batch(self, n: int) -> MessageBatch:
        numbers = range(self.made, self.made + n)
        self.made += n
        return MessageBatch.of(["r.x"] * n, [b"%d-%d" % (self._run, i) for i in numbers])

    def counts(self, *, recorded: int, stored: int, waiting: int, refused: int) -> RecorderCounts:
        return RecorderCounts(recorded=recorded, stored=stored, waiting=waiting, gaps=0, refused=refused)

    def resume(self, read: ReadLog) -> None: ...

    def begin(self) -> Iterator[MessageBatch]:
        yield self._batch(1)

    def records(self) -> Iterator[MessageBatch]:
        self._scheduler.sleep(0.0 if self._stopped else self._scheduler.random.choice((0.01, 0.5, 2.0)))
        n = min(self._left, self._scheduler.random.choice((0, 1, 3)))
        self._left -= n
        if n:
            yield self._batch(n)

    def due(self) -> Iterator[MessageBatch]:
        yield from ()

    def idle(self) -> None: ...

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        self._rejected.extend(payload.removeprefix(b"gap ") for payload in batch.payloads.to_pylist())

    def gaps(self) -> Iterator[MessageBatch]:
        while self._rejected:
            yield MessageBatch.of(["r.gap"], [b"gap " + self._rejected.popleft()])

    def stop(self) -> None:
        self._stopped = True

    def end(self) -> Iterator[MessageBatch]:
        yield self._batch(1)

    def close(self) -> None: ...


class _World:
    def __init__(self, scheduler: Scheduler, shape: Shape) -> None:
        self.scheduler, self.shape = scheduler, shape
        self.name = f"recorded-{scheduler.seed}"
        MemoryBroker.forget(self.name)
        self.broker = MemoryBroker.get(self.name)
        self.runs: list[_Source] = []
        self.complete: set[int] = set()  #: runs that said that all is stored
        self.seen: list[tuple[int, bytes]] = []
        self.position = LogPosition()
        self.warnings: list[str] = []
        self.over = False

    # --- processes -----------------------------------------------------------------------------------------------

    def record(self) -> None:
        number, source = len(self.runs), _Source(self.scheduler, len(self.runs), self.shape.rows)
        self.runs.append(source)
        recorder: list[Recorder] = []
        writer = ResilientPublisher(
            lambda: MemoryBridge(self.name),
            max_in_flight=1,
            wait_timeout=1.0,
            on_rejected=lambda batch, errors: recorder[0].refused(batch, errors),
        )
        recorder.append(Recorder(source, writer))
        until = self.scheduler.now + self.scheduler.random.uniform(3.0, 12.0)
        try:
            if recorder[0].run(lambda: self.scheduler.now >= until):
                self.complete.add(number)
        except ConfigError:
            return  # its first record was rejected
        finally:
            writer.close()

    def follow(self) -> None:
        follower = LogFollower(ReconnectingBridge(lambda: MemoryLogs(self.name), 30.0), self.name)
        while True:
            try:
                follower.start(first_position("saved", self.position, follower.bounds(), "earliest"))
                break
            except Unavailable:
                self.scheduler.sleep(0.5)
        while not self.over or self.position.served < self.broker.last():
            batch = follower.take(0.5)
            if batch is not None:
                self.position = batch.at
                if batch.records is not None:
                    payloads = batch.records.payloads.to_pylist()
                    self.seen += zip(batch.records.sequences.tolist(), payloads, strict=True)
                if batch.warning:
                    self.warnings.append(batch.warning)
        follower.close()

    # --- faults --------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        random, scheduler = self.scheduler.random, self.scheduler
        kind = random.choice(("script", "script", "down", "recorder", "follower"))
        if kind == "script":
            words = [random.choice(_FAULTS) for _ in range(random.choice((1, 3)))]
            scheduler.trace_fault(" ".join(words), "log")
            self.broker.then(words)
            scheduler.call_at(scheduler.now + random.uniform(0, 5), lambda: (self.broker.release(), None)[1])
        elif kind == "down":
            scheduler.trace_fault("down", "log")
            self.broker.up = False
            scheduler.call_at(scheduler.now + random.uniform(0, 10), lambda: setattr(self.broker, "up", True))
        else:
            host = scheduler.host(kind)
            if not host.dead and host.processes:
                scheduler.kill(host)
                scheduler.call_at(scheduler.now + random.uniform(0, 3), lambda: self.start(kind))

    def start(self, kind: str) -> None:
        """Its first process, or another one."""
        host = self.scheduler.host(kind)
        self.scheduler.restart(host)
        self.scheduler.spawn(kind, self.record if kind == "recorder" else self.follow, host, expects=(MamaError,))

    def story(self) -> None:
        """Until the recorder has ended, and the follower has seen all."""
        self.scheduler.sleep(_LASTS + 10.0)
        while self.scheduler.host("recorder").processes:
            self.scheduler.sleep(0.5)
        self.broker.release()
        self.over = True

    # --- what must be true ---------------------------------------------------------------------------------------

    def check(self) -> Iterator[str]:
        stored = self.broker.messages()
        for number, source in enumerate(self.runs):
            mine = [m.payload for m in stored if m.payload.rpartition(b" ")[2].startswith(b"%d-" % number)]
            whole = [int(payload.partition(b"-")[2]) for payload in mine if not payload.startswith(b"gap")]
            gaps = {int(payload.partition(b"-")[2]) for payload in mine if payload.startswith(b"gap")}
            if whole != sorted(set(whole)):
                yield f"run {number} is stored as {whole}"
            missing = set(range(source.made if number in self.complete else max(whole, default=0))) - {*whole, *gaps}
            if number in self.complete and missing:
                yield f"run {number} said that all is stored, without {missing}: {whole}, gaps {gaps}"
        if self.seen != [(m.sequence, m.payload) for m in stored]:
            yield f"seen: {self.seen}, stored: {[(m.sequence, m.payload) for m in stored]}"
        yield from self.warnings
        MemoryBroker.forget(self.name)


def recorder(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Build it."""
    scheduler.preemption = 0.0  # the log is shared by hosts, so none may die while it has its lock
    world = _World(scheduler, shape)
    world.start("recorder")
    world.start("follower")
    scheduler.spawn("story", world.story, scheduler.host("story"))
    for _ in range(shape.faults):
        scheduler.call_at(scheduler.random.uniform(0, _LASTS), world.fault)
    return world.check
