"""Spark, as a Python data sink meets it: a driver, workers on executors, attempts at tasks, commit and abort.

The product's writers run as they are, each call in a process of its own (a :class:`~.kernel.Host`), with the writer and
the commit messages pickled between them. An attempt may fail, be repeated, be declared dead and go on, or run beside
another one (speculation); one attempt at a partition may commit (Spark's commit coordinator). A driver may end at any
time; its workers and its Python process notice that later.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
from mama_spark.spark.write_note import leave_note

from ..kernel import Host, Killed, Process, Scheduler, Signal, active

_CONTEXT, _NOTES = "spark: task context", "spark: notes"
_MAX_FAILURES = 4  #: of one task, as in spark.task.maxFailures


class UpstreamFailed(Exception):
    """What makes the rows of a task has failed."""


@dataclass(slots=True)
class Misfortune:
    """How probable it is that something goes wrong, each time that it may.

    :ivar upstream: the rows of a task end with an error
    :ivar lost: a worker dies in the middle of its task
    :ivar zombie: the driver takes a worker for dead that goes on
    :ivar denied: the answer of the task is lost behind its end
    :ivar speculation: a second attempt begins beside the first
    :ivar step: the driver ends between two steps
    """

    upstream: float = 0.0
    lost: float = 0.0
    zombie: float = 0.0
    denied: float = 0.0
    speculation: float = 0.0
    step: float = 0.0

    def end(self) -> None:
        """Nothing goes wrong any more."""
        for name in self.__dataclass_fields__:
            setattr(self, name, 0.0)


@dataclass(slots=True)
class _Task:
    """One partition of a stage.

    :ivar running: attempts that the driver believes to run; ``failures``: of those before
    :ivar authorized: the attempt that may commit
    """

    partition: int
    batches: Sequence[pa.RecordBatch]
    running: dict[int, Process] = field(default_factory=dict)
    attempts: int = 0
    failures: int = 0
    authorized: int | None = None
    message: bytes | None = None


class Application:
    """One driver, from its start to its end, however that comes.

    :param number: of this driver, for names
    :param latency: seconds from a process to another, at most
    :ivar workers: hosts of its workers
    :ivar notes: what the product has told the driver of each write, in order
    """

    def __init__(self, scheduler: Scheduler, number: int, misfortune: Misfortune, latency: float = 0.01) -> None:
        self._scheduler, self._number, self._misfortune, self._latency = scheduler, number, misfortune, latency
        self.host = scheduler.host(f"driver{number}")
        self._python = self._machine(f"driver{number}-python")
        self.workers: list[Host] = []
        self.notes: list[dict[str, Any]] = []
        self._python.globals[_NOTES] = self.notes
        self._idle: list[Host] = []
        self._made = self._attempts = 0
        self._events: list[Callable[[], None]] = []
        self._happened = Signal(scheduler)

    def _machine(self, name: str) -> Host:
        """A host whose clocks are wrong, and not as right as those of others."""
        host, random = self._scheduler.host(name), self._scheduler.random
        host.ahead, host.rate = random.uniform(-30, 30), random.uniform(0.97, 1.03)
        return host

    # --- the life of the application ---------------------------------------------------------------------------------

    def end(self) -> None:
        """The driver is killed. Its Python process and its workers live for a while, each for its own."""
        scheduler = self._scheduler
        if self.host.dead:
            return
        scheduler.kill(self.host)
        for host in (self._python, *self.workers):
            after = scheduler.random.choice((0.0, 0.5, 10.0)) * scheduler.random.random()
            scheduler.call_at(scheduler.now + after, partial(self._end_host, host))

    def _end_host(self, host: Host) -> None:
        if not host.dead:
            self._scheduler.kill(host)

    def step(self, what: str) -> None:
        """Between two steps of the driver, which may end here."""
        self._scheduler.trace(what)
        if self._scheduler.random.random() < self._misfortune.step:
            self.end()
        self._scheduler.sleep(self._scheduler.random.random() * self._latency)  # it never comes back when it ended

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """What a function returns that runs in the driver's Python process.

        :raises Exception: what it raises
        """
        results: list[Any] = []

        def run() -> None:
            try:
                results.append((pickle.dumps(function()), None))
            except Exception as e:  # noqa: BLE001 - it travels to the driver
                results.append((b"", e))

        self._scheduler.spawn(name, run, self._python, background=True).ended.wait(None, name)
        value, error = results[0]
        if error is not None:
            raise error
        return pickle.loads(value)

    # --- stages ------------------------------------------------------------------------------------------------------

    def stage(
        self, writer: bytes, partitions: Sequence[Sequence[pa.RecordBatch]], properties: Mapping[str, str]
    ) -> tuple[list[bytes | None], str | None]:
        """Run one task a partition: their messages, None of those without; and the error that ended the stage."""
        tasks = [_Task(i, batches) for i, batches in enumerate(partitions)]
        if self._misfortune.speculation:
            properties = {**properties, "spark.speculation": "true"}
        for task in tasks:
            self._launch(task, writer, properties)
        error = None
        while error is None and any(task.message is None for task in tasks):
            if not self._events:
                self._happened.wait(self._scheduler.random.choice((0.5, 3.0)), "tasks")
            events, self._events = self._events, []
            for event in events:
                event()
            for task in tasks:
                if task.failures >= _MAX_FAILURES:
                    error = f"task {task.partition} failed {_MAX_FAILURES} times"
                elif task.message is None and not task.running:
                    self._launch(task, writer, properties)
                elif task.message is None and not events:
                    self._suspect(task, writer, properties)
        for task in tasks:
            for attempt in list(task.running):
                self._kill_attempt(task, attempt)
        return [task.message for task in tasks], error

    def _suspect(self, task: _Task, writer: bytes, properties: Mapping[str, str]) -> None:
        """A task takes long."""
        random, unlucky = self._scheduler.random, self._misfortune
        if random.random() < unlucky.zombie:
            attempt = random.choice(list(task.running))
            self._scheduler.trace(f"takes attempt {attempt} at partition {task.partition} for dead")
            self._lose(task, attempt)
        elif len(task.running) == 1 and random.random() < unlucky.speculation:
            self._launch(task, writer, properties)

    def _lose(self, task: _Task, attempt: int) -> None:
        """What the driver does when an executor is lost, or a task has failed."""
        if attempt in task.running:
            del task.running[attempt]
            task.failures += 1
            if task.authorized == attempt:
                task.authorized = None

    def _kill_attempt(self, task: _Task, attempt: int) -> None:
        """Another one has won, or the stage has failed: the worker is killed, now or later, or never."""
        process, scheduler = task.running.pop(attempt), self._scheduler
        after = scheduler.random.choice((0.0, 0.0, 1.0, 8.0, None))
        if after is not None:
            host = process.host
            scheduler.call_at(scheduler.now + after, lambda: None if process.done else scheduler.kill(host))

    def _launch(self, task: _Task, writer: bytes, properties: Mapping[str, str]) -> None:
        """Begin an attempt, in an idle worker or a new one."""
        scheduler, number = self._scheduler, self._attempts
        self._attempts += 1
        if self._idle:
            host = self._idle.pop(scheduler.random.randrange(len(self._idle)))
        else:
            host = self._machine(f"worker{self._number}.{self._made}")
            self._made += 1
            self.workers.append(host)
        attempt, task.attempts = task.attempts, task.attempts + 1
        context = SimpleNamespace(
            partitionId=lambda: task.partition,
            attemptNumber=lambda: attempt,
            taskAttemptId=lambda: number,
            getLocalProperty=properties.get,
        )
        run = _Attempt(self, task, attempt, context, writer)
        task.running[attempt] = process = scheduler.spawn(
            f"task {task.partition}.{attempt}", run.run, host, background=True
        )
        if scheduler.random.random() < self._misfortune.lost:
            at = scheduler.now + scheduler.random.choice((0.05, 1.0, 10.0)) * scheduler.random.random()
            scheduler.call_at(at, lambda: None if process.done else self._crash(task, attempt, host))

    def _crash(self, task: _Task, attempt: int, host: Host) -> None:
        self._scheduler.kill(host)
        self.tell(lambda: self._lose(task, attempt))

    def tell(self, event: Callable[[], None]) -> None:
        """Let the driver hear of something."""

        def hear() -> None:
            self._events.append(event)
            self._happened.fire()

        scheduler = self._scheduler
        scheduler.call_at(scheduler.now + scheduler.random.random() * self._latency, hear, self.host)

    def may_commit(self, task: _Task, attempt: int) -> bool:
        """The commit coordinator: one attempt at a partition, until it is lost."""
        if task.authorized is None and attempt in task.running:
            task.authorized = attempt
        return task.authorized == attempt

    def finished(self, task: _Task, attempt: int, message: bytes | None, host: Host) -> None:
        """The answer of a task; None: it failed, and its worker has ended."""
        if message is None:
            self._lose(task, attempt)
            return
        if not host.dead:
            self._idle.append(host)
        if attempt in task.running:
            del task.running[attempt]
            task.message = message
            for other in list(task.running):
                self._kill_attempt(task, other)


class _Attempt:
    """One attempt at a task, in a worker."""

    def __init__(self, app: Application, task: _Task, attempt: int, context: SimpleNamespace, writer: bytes) -> None:
        self._app, self._task, self._attempt, self._context, self._writer = app, task, attempt, context, writer

    def run(self) -> None:
        scheduler, app, unlucky = active(), self._app, self._app._misfortune
        host = scheduler.here
        host.globals[_CONTEXT] = self._context
        try:
            message: bytes | None = pickle.dumps(pickle.loads(self._writer).write(self._rows()))
        except Killed:
            raise
        except Exception as e:  # noqa: BLE001 - the driver hears that there was one
            scheduler.trace(f"failed: {type(e).__name__}: {e}")
            message = None
        scheduler.sleep(scheduler.random.random() * app._latency)
        if message is not None and not app.may_commit(self._task, self._attempt):
            scheduler.trace("may not commit")
            message = None
        if message is not None and scheduler.random.random() < unlucky.denied:
            scheduler.trace("its answer is lost")
            message = None
        app.tell(lambda: app.finished(self._task, self._attempt, message, host))
        if message is None:
            scheduler.kill(host)  # Spark ends the worker of a task that failed

    def _rows(self) -> Iterator[pa.RecordBatch]:
        scheduler, unlucky = active(), self._app._misfortune
        for batch in self._task.batches:
            if scheduler.random.random() < 0.3:
                scheduler.sleep(scheduler.random.choice((0.01, 1.0)))
            if scheduler.random.random() < unlucky.upstream:
                raise UpstreamFailed("the rows of this task cannot be read")
            yield batch


class _Silent:
    """A stream of text that nobody reads."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


class _System:
    """The module ``sys``; what the product prints on the standard error stream is not shown."""

    stderr = _Silent()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class SimTaskContext:
    """See ``pyspark.TaskContext``."""

    @staticmethod
    def get() -> Any:
        return active().here.globals.get(_CONTEXT)


def replaced() -> dict[int, Any]:
    """By the identity of what is real: what stands in its place."""
    return {
        id(pyspark.TaskContext): SimTaskContext,
        id(sys): _System(),
        id(leave_note): lambda fields: active().here.globals[_NOTES].append(fields),
    }
