"""Writes one partition, on an executor: its rows pass the :mod:`.stages`, and the publisher sends what comes out.

Runs on the task's thread; :mod:`.outcome_recorder` is its counterpart on the publisher's thread. When
:func:`publish_partition` returns, every row has its one outcome, and the flight log's events are on storage.

Threads of a partition: the task's, ``mama-publisher`` and ``flight-log``. More come with ``announce``
(``mama-announcer``), with progress that the driver, the log or ``announceCounts`` shows (``mama-progress``), with
``exactlyOnce`` (``mama-batch-lease``, ``mama-batch-ends``) and ``metrics`` (``mama-metrics``, and OpenTelemetry's). All
partitions of a process share ``mama-idle-connections``, which closes these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain

import pyarrow as pa

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.registry import middleware

from .dead_letter_queue import DeadLetterContext
from .failure_policy import end_of_task_error, task_must_be_retried
from .job import PartitionReport, SinkJob, TaskInfo
from .open_write import OpenWrite, open_write
from .outcome_recorder import OutcomeRecorder
from .stages import SinkBatch, finished, returned, through


def publish_partition(job: SinkJob, task: TaskInfo, batches: Iterator[pa.RecordBatch]) -> PartitionReport:
    """Publish all rows and wait for their outcomes.

    :raises Unavailable: a retry of the task may succeed (broker or storage gone); everything else is in the report, so
        that one bad row does not make Spark publish the partition again
    """
    report = PartitionReport(job.write_id(task), task.partition, task.attempt)
    report.knows_ids = middleware(job.options.bridge_name).batch_ledger is not None  # until the bridge says so
    recorder = OutcomeRecorder(job, task, report)
    try:
        with ExitStack() as opened:
            opened.callback(recorder.close_quietly)
            try:
                _publish_rows(job, task, recorder, (rows for rows in batches if rows.num_rows), opened)
            except ConfigError as e:
                recorder.events.partition_failed(e)
                report.fatal = str(e)
            except Exception as e:
                recorder.events.partition_failed(e)
                raise
    except Unavailable as e:  # here, where each row has its outcome
        raise type(e)(f"{e}{end_of_task_error(job, report)}") from e.__cause__
    return report


def _publish_rows(
    job: SinkJob, task: TaskInfo, recorder: OutcomeRecorder, batches: Iterator[pa.RecordBatch], opened: ExitStack
) -> None:
    first = next(batches, None)
    if first is None:  # an empty partition opens nothing
        recorder.close()
        return
    write = open_write(job, task, recorder, first, opened)
    batches = chain((first,), batches)
    del first  # its memory, when it is sent
    PartitionWriter(write, recorder).write(batches)
    recorder.close()
    o, counts = job.options, recorder.report.counts
    if task_must_be_retried(o, counts):
        cause = write.publisher.outage_cause
        why = [f"nothing was acknowledged for a while: {cause}"] if cause else []
        raise Unavailable("; ".join(["rows were not published", *counts.failures(), *why]))


class PartitionWriter:
    def __init__(self, opened: OpenWrite, recorder: OutcomeRecorder) -> None:
        self._publisher, self._stages, self._opened = opened.publisher, opened.stages, opened
        self._recorder = recorder

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Returns when every row has its outcome and the connection is given back."""
        first = 0
        for rows in batches:
            self._send(through(self._stages, self._opened.encoder.encode(rows, first)))
            first += rows.num_rows
            self._send(returned(self._stages))
            self._send_dead_letters(all_of_them=False)
        self._send(finished(self._stages))
        self._recorder.prepare_files()
        self._wait_settled()
        self._send_dead_letters(all_of_them=True)
        self._publisher.drain()
        self._opened.end()

    def _send(self, some: Iterable[SinkBatch]) -> None:
        for one in some:
            self._publisher.put(one.messages, one.rejected, one, one.stored)

    def _send_dead_letters(self, *, all_of_them: bool) -> None:
        dead_letters = self._recorder.take_dead_letters(all_of_them=all_of_them)
        if dead_letters is not None:
            session = self._opened.session
            stored = () if session is None else session.match_stored_dead_letters(dead_letters)
            self._publisher.put(dead_letters, (), DeadLetterContext(), stored)

    def _wait_settled(self) -> None:
        """Wait until every row has its outcome, and so every dead letter is known; each flight has its deadline."""
        if not self._recorder.may_add_messages:
            return  # to drain is enough
        self._publisher.wait_settled()
        while again := list(returned(self._stages)):
            self._send(again)
            self._publisher.wait_settled()
