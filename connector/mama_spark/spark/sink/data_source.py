"""The format ``mamapub``: publish a DataFrame, in batch and in streams.

Spark makes the data source, the writer, the tasks and the commit in different processes, again at will, so nothing is
opened in a constructor; schema, options and the folders of the tables are checked on the driver, where relative paths
become absolute, and the commit has no SparkSession.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mama_spark.contracts.errors import ConfigError, MamaError, OptionError, RowsFailed
from mama_spark.contracts.redaction import redact, redact_url
from mama_spark.options import BATCH_WRITE, STREAM_WRITE, SinkOptions
from mama_spark.registry import require_exactly_once

from ..features import DataSourceStreamArrowWriter, arrow_schema
from ..gc_freeze import exempt_modules
from ..option_loading import read_options
from ..plain_errors import plain_errors
from ..write_note import COUNTS, REPEATS, leave_note
from .job import OutcomeCounts, PartitionReport, SinkJob, task_info

if TYPE_CHECKING:
    import pyarrow as pa

    from mama_spark.flightlog.folder import WriteId


logger = logging.getLogger("mama_spark")


def batch_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> MamaPubWriter:
    """The writer of a batch write of ``mamapub``.

    :raises ConfigError: an option or a column is wrong
    """
    if overwrite:
        raise OptionError(
            'mamapub cannot overwrite: what was published cannot be taken back. Use mode("append"), '
            "and purge the stream at the broker if you want it empty first"
        )
    job = _job(given, schema, streaming=False)
    _warn_of_late_repetition(job.options)
    return MamaPubWriter(job)


def _warn_of_late_repetition(o: SinkOptions) -> None:
    """Warn if ``idPrefix`` names an earlier run, as its error advises: only executors can ask for the window."""
    if o.id_prefix is None or o.flight_log is None:
        return
    from mama_spark.flightlog.storage import TableStore, storage_errors
    from mama_spark.flightlog.transaction import seconds_since_run

    with storage_errors(f"flightLog {o.flight_log}", o.storage_options):
        table = TableStore(o.flight_log, o.storage_options).table()
        age = None if table is None else seconds_since_run(table, o.id_prefix)
    if age is not None:
        logger.warning(
            "mamapub: the run with idPrefix=%r ended %.0f s ago: if the stream's duplicate window is shorter, its rows "
            "are stored again",
            o.id_prefix, age,
        )  # fmt: skip


def stream_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> MamaPubStreamWriter:
    if overwrite:
        raise OptionError(
            'mamapub takes no outputMode("complete"): it would publish the whole result again in every batch. '
            'Use outputMode("append"), or foreachBatch with a batch write of what changed'
        )
    job = _job(given, schema, streaming=True)
    if job.options.gc_freeze:
        exempt_modules()
    return MamaPubStreamWriter(job)


def _job(given: dict[str, str], schema: StructType, *, streaming: bool) -> SinkJob:
    from mama_spark.flightlog.schema import dead_letter_schema, packed_rows_field, table_schema

    from .encoding.columns import plan_columns

    loaded = read_options(SinkOptions, given, STREAM_WRITE if streaming else BATCH_WRITE)
    options = loaded.options.with_tables_below(os.getcwd())
    if options.exactly_once:
        require_exactly_once(options)
    if options.announce:
        from .announcer import check_announce

        check_announce(options, loaded.discovery)
    plan = plan_columns(schema, options)
    if options.exactly_once and plan.stream is not None:
        raise OptionError(
            f"option exactlyOnce goes with one stream for all rows, and the column {plan.stream!r} names one for each: "
            "give the option stream, and write the rows of each stream in a query of its own"
        )
    arrow = arrow_schema(StructType([f for f in schema.fields if f.name in plan.log]))
    fields = tuple(arrow.field(name) for name in plan.log)
    dead_letter_fields = fields
    if options.pack != "off" and fields:
        fields = (packed_rows_field(fields),)
    log_schema, extra = table_schema(fields), frozenset(f.name for f in fields)
    name = next((value for key, value in given.items() if key.lower() == "queryname"), None)
    return SinkJob(
        options, plan, streaming, uuid.uuid4().hex[:16], fields, loaded.discovery, name,
        log_marker=_require_table(options.flight_log, options, log_schema, "flightLog", extra),
        dead_letter_marker=_require_table(
            options.dead_letter_table, options, dead_letter_schema(dead_letter_fields), "deadLetterTable",
            frozenset(plan.log),
        ),
        dead_letter_fields=dead_letter_fields,
    )  # fmt: skip


def _require_table(
    uri: str | None, options: SinkOptions, schema: pa.Schema, what: str, extra: frozenset[str]
) -> str | None:
    """Before anything is published: make the folder of a table, and check that a commit to it can succeed; returns the
    marker of :func:`~mama_spark.flightlog.folder.mark_folder`."""
    from mama_spark.flightlog.folder import DELTA_LOG, mark_folder
    from mama_spark.options.paths import local_path

    if uri is None:
        return None
    marker, path = mark_folder(uri, what), local_path(uri)
    if path is None or os.path.isdir(os.path.join(path, DELTA_LOG)):  # or delta-rs need not be loaded
        from mama_spark.flightlog.storage import TableStore, existing_table

        existing_table(TableStore(uri, options.storage_options), schema, what, extra)
    return marker


class _Committer:
    def __init__(self, job: SinkJob) -> None:
        self.job = job

    # --- in a task -------------------------------------------------------------------------------------------

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self.job.options.gc_freeze:
            exempt_modules()
        from .partition_writer import publish_partition

        return publish_partition(self.job, task_info(self.job.streaming), iterator)

    # --- on the driver ---------------------------------------------------------------------------------------

    def _commit(self, messages: Sequence[WriterCommitMessage | None], app: tuple[str, int] | None) -> OutcomeCounts:
        from .failure_policy import advice_for_repetition, failures_of_write, where_logged

        reports, total = _reports(messages), _total(messages)
        fatal = next((r.fatal for r in reports if r.fatal is not None), None)
        failures = failures_of_write(self.job.options, total)
        committed = repeats = False
        try:
            if fatal is not None:
                self._abort(reports, app)
                raise ConfigError(f"{fatal}{advice_for_repetition(self.job, total, reports)}")
            if failures:
                self._abort(reports, app)
                advice = advice_for_repetition(self.job, total, reports)
                where = where_logged(self.job, self._write_id(reports))
                what = "1 row was" if failures == 1 else f"{failures:,} rows were"
                raise RowsFailed(f"{what} not published: {total.sentence()}{where}{advice}")
            try:
                repeats = self._add_to_tables(reports, app, committed=True)
            except MamaError as e:
                raise type(e)(f"{e}{advice_for_repetition(self.job, total, reports)}") from e
            committed = not repeats
        finally:
            self._leave_note(reports, total, committed=committed, repeats=repeats)
        if repeats:
            logger.warning("mamapub: %s: its rows are in the tables as not committed", REPEATS)
        if total.perhaps_twice:
            logger.warning("mamapub: %s", total.summary())
        if total.doubled_ids:
            logger.warning("mamapub: of %s rows, %s", f"{total.rows:,}", total.doubled_ids_text())
        return total

    def _abort(self, messages: Sequence[WriterCommitMessage | None], app: tuple[str, int] | None) -> None:
        """Everything that was staged goes to the tables as not committed; may be called again after a commit. Raises
        nothing: Spark would put this error before the one that it aborts for."""
        try:
            self._add_to_tables(_reports(messages), app, committed=False)
        except Exception as e:
            said, trace = "the tables lack the outcomes of the failed write", not isinstance(e, MamaError)
            logger.warning("mamapub: %s: %s", said, e, exc_info=trace)

    def _add_to_tables(self, reports: Sequence[PartitionReport], app: tuple[str, int] | None, committed: bool) -> bool:
        """Add dead letters, then flights: who reads of a dead letter in the log finds it. True: a commit before has
        recorded ``app``, so that nothing was added as committed."""
        job, o, write_id, recorded = self.job, self.job.options, self._write_id(reports), False
        if write_id is None or (o.dead_letter_table is None and o.flight_log is None):
            return recorded
        from mama_spark.flightlog import commit as tables
        from mama_spark.flightlog.schema import DEAD_LETTER_TABLE

        about = self._description(write_id)
        add = partial(tables.commit if committed else tables.abort, app=app, description=about)
        if (uri := o.dead_letter_table) is not None:
            parts = [p for r in reports for p in r.dead_letter_parts]
            recorded = add(
                uri, o.storage_options, write_id, parts, extra=job.dead_letter_fields, kind=DEAD_LETTER_TABLE
            ).recorded
        if (uri := o.flight_log) is not None:
            parts = [p for r in reports for p in r.parts]
            recorded = add(uri, o.storage_options, write_id, parts, extra=job.log_fields).recorded
        return recorded

    def _description(self, write_id: WriteId) -> dict[str, Any]:
        return {
            "run_id": write_id.run_id,
            "query_id": write_id.query_id,
            "batch_id": write_id.batch_id,
            "query_name": self.job.query_name,
            "options": {name: redact(text) for name, text in self.job.options.shown().items()},
        }

    def _note_abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Keep the counts of a write of which a task failed. Spark calls this after a commit that raised, too."""
        self._leave_note(_reports(messages), _total(messages), committed=False)

    def _leave_note(
        self, reports: Sequence[PartitionReport], total: OutcomeCounts, *, committed: bool, repeats: bool = False
    ) -> None:
        write_id, log = self._write_id(reports), self.job.options.flight_log
        leave_note(
            {
                "counts": {name: getattr(total, name) for name in COUNTS},
                "reasons": {redact(reason): number for reason, number in total.reasons.most_common(20)},
                "committed": committed,
                "repeats": repeats,
                "flight_log": log if log is None or "://" not in log else redact_url(log),
                "run_id": None if write_id is None else write_id.run_id,
                "query_id": None if write_id is None else write_id.query_id,
                "batch_id": None if write_id is None else write_id.batch_id,
            }
        )

    def _write_id(self, reports: Sequence[PartitionReport]) -> WriteId | None:
        """The write as the tasks know it; None for a stream of which no task reported: the next commit of the query
        adds the parts that its tasks left."""
        return reports[0].write_id if reports else None


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[PartitionReport]:
    return [message for message in messages if isinstance(message, PartitionReport)]


def _total(messages: Sequence[WriterCommitMessage | None]) -> OutcomeCounts:
    total = OutcomeCounts()
    for report in _reports(messages):
        total.add(report.counts)
    return total


class MamaPubWriter(_Committer, DataSourceArrowWriter):
    def __init__(self, job: SinkJob) -> None:
        super().__init__(job)
        self._withdrawn = False
        self._began = time.monotonic()  # of the machine: planning and commit are two processes of the driver
        if job.options.flight_log is None:
            logger.warning("mamapub: option flightLog is not set: there will be no record of the outcome of each row")
        if job.options.exactly_once and not job.has_name:
            logger.warning(
                "mamapub: option exactlyOnce covers repeated tasks of this write only: without txnAppId and "
                "txnVersion, a repetition of the write stores all rows again"
            )

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            total = self._commit(messages, self._app())
        finally:
            self._withdraw(messages)
        log = self.job.options.flight_log
        where = "no flight log" if log is None else f"log {redact_url(log) if '://' in log else log}"
        seconds = max(0.0, time.monotonic() - self._began)
        lines = [f"mamapub: {total.summary()}, {seconds:.1f} s, {where}", *total.failures()]
        print("\n  ".join(lines), file=sys.stderr, flush=True)

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self._abort(messages, self._app())
            self._note_abort(messages)
        finally:
            self._withdraw(messages)

    def _withdraw(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The job is over. A source that was announced by tasks that all failed is not known here; it expires."""
        source = next((report.source for report in _reports(messages) if report.source is not None), None)
        if source is not None and not self._withdrawn:
            from .announcer import withdraw

            self._withdrawn = True  # Spark calls abort after a commit that raised
            withdraw(self.job.options, self.job.discovery, source)

    def _write_id(self, reports: Sequence[PartitionReport]) -> WriteId | None:
        return self.job.write_id()

    def _app(self) -> tuple[str, int] | None:
        return self.job.repeated_as(None, None)


class MamaPubStreamWriter(_Committer, DataSourceStreamArrowWriter):
    """Streaming writes. Spark makes it anew for planning and for the commit of every micro-batch."""

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        total = self._commit(messages, self._app(messages, batchId))
        if total.failed or total.timed_out:
            logger.warning("mamapub: batch %d: %s", batchId, total.sentence())
        log, every = self.job.options.flight_log, self.job.options.flight_log_compact_every
        if log is not None and every and (batchId + 1) % every == 0:
            from mama_spark.flightlog.maintenance import compact_after_commit

            compact_after_commit(log, self.job.options.storage_options)

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages, self._app(messages, batchId))
        self._note_abort(messages)

    def _app(self, messages: Sequence[Any], batch_id: int) -> tuple[str, int] | None:
        write_id = self._write_id(_reports(messages))
        return None if write_id is None else self.job.repeated_as(write_id.query_id, batch_id)
