"""The format ``mamapub``: publish a DataFrame, in batch and in streams.

Spark makes the data source, the writer, the tasks and the commit in different processes and makes them again at will,
so nothing is opened in a constructor; schema and options are checked on the driver, and the commit has no SparkSession.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mama_spark.errors import ConfigError, OptionError, RowsFailed
from mama_spark.flightlog import commit as flight_log
from mama_spark.flightlog import dead_letters
from mama_spark.flightlog.schema import table_schema
from mama_spark.flightlog.staging import WriteId
from mama_spark.options import SinkOptions

from ..option_loading import check_spark, read_options
from .announcer import check_announce, withdraw
from .columns import plan_columns
from .outcomes import OutcomeCounts
from .packed_messages import log_fields
from .partition_writer import PartitionReport, SinkJob, publish_partition, task_info

log = logging.getLogger("mama_spark")


def batch_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> MamaPubWriter:
    """
    :param given: the options, as Spark hands them over
    :raises ConfigError: an option or a column is wrong
    """
    if overwrite:
        raise OptionError(
            'mamapub cannot overwrite: what was published cannot be taken back. Use mode("append"), '
            "and purge the stream at the broker if you want it empty first"
        )
    return MamaPubWriter(_job(given, schema, streaming=False))


def stream_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> MamaPubStreamWriter:
    """As :func:`batch_writer`."""
    if overwrite:
        raise OptionError(
            'mamapub takes no outputMode("complete"): it would publish the whole result again in every batch. '
            'Use outputMode("append"), or foreachBatch with a batch write of what changed'
        )
    return MamaPubStreamWriter(_job(given, schema, streaming=True))


def _job(given: dict[str, str], schema: StructType, *, streaming: bool) -> SinkJob:
    check_spark("mamapub")
    read = read_options(SinkOptions, given)
    options = read.options
    if streaming and options.txn_app_id is not None:
        raise OptionError("options txnAppId and txnVersion are for batch writes: a stream has its own identity")
    if options.announce:
        check_announce(options, read.discovery)
    plan = plan_columns(schema, options)
    arrow: pa.Schema = to_arrow_schema(StructType([f for f in schema.fields if f.name in plan.log]), timezone="UTC")
    fields = tuple(arrow.field(name) for name in plan.log)
    fields = fields if options.pack == "off" else log_fields(fields)
    table_schema(fields)  # refuses columns that have the name of one of the log's own
    name = next((value for key, value in given.items() if key.lower() == "queryname"), None)
    return SinkJob(options, plan, streaming, uuid.uuid4().hex[:16], fields, read.discovery, name)


class _Committer:
    """What batch and streaming have in common on the driver."""

    def __init__(self, job: SinkJob) -> None:
        self.job = job

    def _write(self, batches: Iterator[pa.RecordBatch]) -> PartitionReport:
        return publish_partition(self.job, task_info(self.job.streaming), batches)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], app: tuple[str, int] | None) -> None:
        reports = [m for m in messages if isinstance(m, PartitionReport)]
        fatal = next((r.fatal for r in reports if r.fatal is not None), None)
        if fatal is not None:
            self._abort(reports, app)
            raise ConfigError(fatal)
        total = OutcomeCounts()
        for report in reports:
            total.add(report.tally)
        failures = self._failures(total)
        if failures:
            self._abort(reports, app)
            raise RowsFailed(f"{failures:,} rows were not published: {total.sentence()}{self._where(reports)}")
        run = self._run(reports)
        o = self.job.options
        if run is not None and o.dead_letter_table is not None:
            dead = [p for r in reports for p in r.dead_parts]
            dead_letters.commit_dead_letters(o.dead_letter_table, o.storage_options, run, dead, app=app)
        if run is not None and o.flight_log is not None:
            parts = [p for r in reports for p in r.parts]
            flight_log.commit(o.flight_log, o.storage_options, run, parts, app=app, extra=self.job.log_fields)

    def _failures(self, total: OutcomeCounts) -> int:
        """Failed rows that the options do not tolerate."""
        o = self.job.options
        if o.on_error == "fail":
            return total.guilty + total.outage
        return 0 if o.error_tolerance == "all" else total.outage

    def _abort(self, messages: Sequence[WriterCommitMessage | None], app: tuple[str, int] | None) -> None:
        """Everything that was staged goes to the tables as not committed; may be called again after a commit."""
        reports = [m for m in messages if isinstance(m, PartitionReport)]
        run = self._run(reports)
        o = self.job.options
        if run is None:
            return
        if o.dead_letter_table is not None:
            dead = [p for r in reports for p in r.dead_parts]
            dead_letters.abort_dead_letters(o.dead_letter_table, o.storage_options, run, dead, app=app)
        if o.flight_log is not None:
            parts = [p for r in reports for p in r.parts]
            flight_log.abort(o.flight_log, o.storage_options, run, parts, app=app, extra=self.job.log_fields)

    def _run(self, reports: Sequence[PartitionReport]) -> WriteId | None:
        """The run as the tasks know it. A stream whose tasks all died without a word has none here: what they left is
        added by the next commit of the query."""
        return reports[0].run if reports else None

    def _where(self, reports: Sequence[PartitionReport]) -> str:
        path = self.job.options.flight_log
        if path is None:
            return "; no flight log was kept (option flightLog)"
        run = self._run(reports)
        what = "" if run is None else f" (run_id {run.run_id!r}, batch_id {run.batch_id})"
        return f"; flight log: {path}{what}"


class MamaPubWriter(_Committer, DataSourceArrowWriter):
    """Batch writes."""

    def __init__(self, job: SinkJob) -> None:
        super().__init__(job)
        self._withdrawn = False
        if job.options.flight_log is None:
            log.warning("mamapub: option flightLog is not set: nobody will know what became of each row")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self._commit(messages, self._app())
        finally:
            self._withdraw(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self._abort(messages, self._app())
        finally:
            self._withdraw(messages)

    def _withdraw(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The job is over. What was announced by tasks that all failed is not known here, and expires."""
        for report in messages:
            if isinstance(report, PartitionReport) and report.source is not None and not self._withdrawn:
                self._withdrawn = True  # Spark calls abort after a commit that raised
                withdraw(self.job.options, self.job.discovery, report.source)

    def _run(self, reports: Sequence[PartitionReport]) -> WriteId | None:
        o = self.job.options
        return WriteId(None, self.job.run_id, o.txn_version, o.bridge_name)

    def _app(self) -> tuple[str, int] | None:
        o = self.job.options
        return None if o.txn_app_id is None or o.txn_version is None else (o.txn_app_id, o.txn_version)


class MamaPubStreamWriter(_Committer, DataSourceStreamArrowWriter):
    """Streaming writes. Spark makes it anew for planning and for the commit of every micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, self._app(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages, self._app(messages, batchId))

    def _app(self, messages: Sequence[Any], batch_id: int) -> tuple[str, int] | None:
        run = self._run([m for m in messages if isinstance(m, PartitionReport)])
        return None if run is None or run.query_id is None else (run.query_id, batch_id)
