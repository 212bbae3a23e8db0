"""The data that travels between the driver and the tasks of one write: the job with its plan of columns, and the report
of each partition. Spark unpickles these in processes that only plan or commit, so this module imports no Arrow, no
bridge and no Delta."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from mama_spark.contracts.errors import PERHAPS_TWICE, ConfigError, DoubledId

from ..option_loading import DiscoveryProperties

if TYPE_CHECKING:
    import pyarrow as pa

    from mama_spark.flightlog.folder import WriteId
    from mama_spark.flightlog.parts import Part
    from mama_spark.mama.messages.source_records import SourceRecord
    from mama_spark.options import SinkOptions

MAX_FIRST_FAILURES = 5


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Names of the columns (as the DataFrame spells them) by their use; None = there is none.

    :ivar topic: column with the topic; or ``parts`` join to it; or the option ``topic`` gives it
    :ivar value: payload; without it the columns ``json`` become one JSON object
    :ivar headers_form: ``map``, ``multimap`` or ``kafka``
    :ivar trace: column with the ``traceparent`` of each row
    :ivar log: columns that go to the flight log
    :ivar stream: column with the stream of each row; None = all go to the stream of the options
    :ivar typed: columns that are packed with their types (``pack=arrow`` without a value); empty = none
    :ivar native: columns for the row codec of the bridge: (its name, name in the DataFrame); with them, only ``id``,
        ``log`` and ``headers`` are used
    """

    topic: str | None
    parts: tuple[tuple[str, str], ...]
    value: str | None
    json: tuple[str, ...]
    headers: str | None
    headers_form: str
    id: str | None
    log: tuple[str, ...]
    stream: str | None = None
    typed: tuple[str, ...] = ()
    native: tuple[tuple[str, str], ...] = ()
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class SinkJob:
    """The data that every task of a write needs; made on the driver, pickled.

    :ivar log_fields: columns of the DataFrame that go to the flight log
    :ivar dead_letter_fields: the same for dead letters, which are single rows where ``log_fields`` are those of packs
    :ivar log_marker, dead_letter_marker: markers that the driver has put into the folders of the tables
    """

    options: SinkOptions
    plan: ColumnPlan
    streaming: bool
    run_id: str
    log_fields: tuple[pa.Field, ...]
    discovery: DiscoveryProperties = field(default_factory=DiscoveryProperties)
    query_name: str | None = None
    log_marker: str | None = None
    dead_letter_marker: str | None = None
    dead_letter_fields: tuple[pa.Field, ...] = ()

    @property
    def has_name(self) -> bool:
        return self.streaming or self.options.txn_app_id is not None

    def repeated_as(self, query_id: str | None, batch_id: int | None) -> tuple[str, int] | None:
        """Name and number that all repetitions of a write have: query and micro-batch, or ``txnAppId`` and
        ``txnVersion``; None: each run is a write of its own."""
        o = self.options
        if query_id is not None:
            return query_id, batch_id or 0
        return None if o.txn_app_id is None or o.txn_version is None else (o.txn_app_id, o.txn_version)

    def write_id(self, task: TaskInfo | None = None) -> WriteId:
        """Identity of the write in the flight log; a stream needs ``task``."""
        from mama_spark.flightlog.folder import WriteId

        o = self.options
        if task is None or task.query_id is None:
            return WriteId(None, self.run_id, o.txn_version, o.bridge_name)
        return WriteId(task.query_id, task.stream_run or task.query_id, task.batch_id, o.bridge_name)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One attempt at one partition: what Spark's task context says.

    :ivar query_id, batch_id, stream_run: None in a batch write
    :ivar progress: address at which the driver shows the progress; None = it does not
    :ivar attempt_id: Spark's number of this attempt in the whole application. ``attempt`` begins at 0 again when Spark
        repeats a stage, because an executor was lost with the shuffle files that it reads
    """

    partition: int
    attempt: int
    query_id: str | None
    batch_id: int | None
    stream_run: str | None
    speculation: bool
    app_name: str | None = None
    app_id: str | None = None
    progress: str | None = None
    attempt_id: int | None = None

    @property
    def unique_attempt(self) -> int:
        """Another number for every attempt at a partition; later ones are greater."""
        return self.attempt if self.attempt_id is None else self.attempt_id


def task_info(streaming: bool) -> TaskInfo:
    """Read from Spark's task context. The names of the properties are internals of Spark, read only here.

    :raises ConfigError: a streaming task does not know its query or batch
    """
    from ..write_counts import PROPERTY

    context = TaskContext.get()
    if context is None:
        raise ConfigError("mamapub writes inside Spark tasks only")
    query_id = batch_id = stream_run = None
    if streaming:  # a batch write inside foreachBatch sees the stream's properties, too, and must not use them
        query_id = context.getLocalProperty("sql.streaming.queryId")
        text = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or text is None:
            raise ConfigError(
                "this task has no streaming query and batch in its Spark properties: mamapub does not know this Spark"
            )
        batch_id = int(text)
        stream_run = context.getLocalProperty("spark.jobGroup.id")
    speculation = (context.getLocalProperty("spark.speculation") or "false").lower() == "true"
    app_name, app_id = context.getLocalProperty("spark.app.name"), context.getLocalProperty("spark.app.id")
    return TaskInfo(
        context.partitionId(), context.attemptNumber(), query_id, batch_id, stream_run, speculation, app_name, app_id,
        context.getLocalProperty(PROPERTY), context.taskAttemptId(),
    )  # fmt: skip


@dataclass(slots=True)
class OutcomeCounts:
    """Numbers of rows of a partition (or, added up, of a write) by outcome.

    :ivar row_errors: failed rows of which the row itself is the cause; ``outage_errors``: all other failed rows
    :ivar reasons: failed rows by reason; ``first_failures``: (topic, id, reason) of the first of some of them
    :ivar perhaps_twice: acknowledged rows that were sent while a copy of them might still be stored
    :ivar doubled_ids: rows with the id of a row before them in their task; ``first_doubled_id``: (id, topic) of one
    """

    rows: int = 0
    acked: int = 0
    published: int = 0
    duplicates: int = 0
    failed: int = 0
    timed_out: int = 0
    row_errors: int = 0
    outage_errors: int = 0
    dead_lettered: int = 0
    first_failures: list[tuple[str | None, str | None, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    doubled_ids: int = 0
    first_doubled_id: tuple[str, str] | None = None
    perhaps_twice: int = 0

    def add(self, other: OutcomeCounts) -> None:
        for name in (
            "rows", "acked", "published", "duplicates", "failed", "timed_out", "row_errors", "outage_errors",
            "dead_lettered", "perhaps_twice", "doubled_ids",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_doubled_id = self.first_doubled_id or other.first_doubled_id
        for failure in other.first_failures:
            self._add_first(*failure)
        self.reasons.update(other.reasons)

    def add_failure(
        self, topic: str | None, flight_id: str | None, reason: str, rows: int, *, is_row_error: bool
    ) -> None:
        if is_row_error:
            self.row_errors += rows
        else:
            self.outage_errors += rows
        self.reasons[_kind(reason)] += rows
        self._add_first(topic, flight_id, reason)

    def _add_first(self, topic: str | None, flight_id: str | None, reason: str) -> None:
        known = self.first_failures
        if len(known) < MAX_FIRST_FAILURES and all(_kind(reason) != _kind(other) for _, _, other in known):
            known.append((topic, flight_id, reason))

    def limit_reasons(self) -> None:
        """Keep the most frequent reasons only: they may quote topics, and the commit message must stay small."""
        if len(self.reasons) > 50:
            self.reasons = Counter(dict(self.reasons.most_common(20)))

    def sentence(self) -> str:
        """``1,000 rows: 997 acked, 2 failed, 1 timed out; first failures: ...``, in a line."""
        failures = self.failures()
        return self._counts() + (f"; first failures: {'; '.join(failures)}" if failures else "")

    def failures(self) -> list[str]:
        """``2 x BAD_SYMBOL: ... (topic 'a.*', id 'x')``: rows that failed for a reason, and the first of them."""
        shown = {_kind(reason): reason for _, _, reason in self.first_failures}
        found = []
        for topic, flight, reason in self.first_failures:
            number = f"{self.reasons[_kind(reason)]:,} x " if _kind(reason) in self.reasons else ""
            row = ", ".join(f"{name} {text!r}" for name, text in (("topic", topic), ("id", flight)) if text is not None)
            found.append(f"{number}{reason}" + (f" ({row})" if row else ""))
        others = self.failed + self.timed_out - sum(self.reasons[kind] for kind in shown)
        return [*found, f"{others:,} for other reasons"] if found and others > 0 else found

    def _counts(self) -> str:
        parts = [f"{self.acked:,} acked"]
        if self.duplicates:
            parts[0] += f" ({self.duplicates_text()})"
        if self.published:
            parts.append(f"{self.published:,} published without acknowledgement")
        parts += [f"{self.failed:,} failed", f"{self.timed_out:,} timed out"]
        if self.dead_lettered:
            parts.append(f"{self.dead_lettered:,} sent to the dead letters")
        if self.perhaps_twice:
            parts.append(f"{self.perhaps_twice:,} {PERHAPS_TWICE} (onSilentServer=publish)")
        if self.doubled_ids:
            parts.append(self.doubled_ids_text())
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'}: {', '.join(parts)}"

    def doubled_ids_text(self) -> str:
        """``2 with a doubled id in the same write (the first: id 'a', topic 't')``"""
        text = f"{self.doubled_ids:,} with a {DoubledId.label}"
        if self.first_doubled_id is None:
            return text
        flight, topic = self.first_doubled_id
        return f"{text} (the first: id {flight!r}, topic {topic!r})"

    def summary(self) -> str:
        """``336,776 rows, all acknowledged``, or all counts where that is not so."""
        if self.rows == self.acked and not (self.doubled_ids or self.perhaps_twice):
            text = f"{self.rows:,} row{'' if self.rows == 1 else 's'}" + (", all acknowledged" if self.rows else "")
            return text + (f" ({self.duplicates_text()})" if self.duplicates else "")
        return self._counts()

    def duplicates_text(self) -> str:
        """A text about the answers ``duplicate``: the broker has a message of this row, or of one with its id."""
        return f"{self.duplicates:,} with an id stored before, by another task or an earlier attempt or write"


def _kind(reason: str) -> str:
    """The kind of a reason: those that begin alike count as one."""
    return reason[:200]


@dataclass
class PartitionReport(WriterCommitMessage):
    """The commit message of a task: counts and file names, a few kilobytes at most.

    :ivar parts: parts of the flight log; ``dead_letter_parts``: of the dead-letter table
    :ivar fatal: an error that only the user can correct; the task published nothing after it. None = there was none
    :ivar stores: an acknowledged message is stored; ``knows_ids``: the broker stores two messages of one id once
    :ivar duplicate_window: seconds for which it knows an id; None = not known
    """

    write_id: WriteId
    partition: int
    attempt: int
    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    parts: list[Part] = field(default_factory=list)
    dead_letter_parts: list[Part] = field(default_factory=list)
    fatal: str | None = None
    source: SourceRecord | None = None
    stores: bool = False
    knows_ids: bool = False
    duplicate_window: float | None = None
