"""The failed rows that fail a task or the write, and those that become dead letters, by ``onError`` and
``errorTolerance``; the advice of an error when rows are stored already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mama_spark.contracts.bridge import Ack, Capabilities
from mama_spark.contracts.errors import PublishError
from mama_spark.options import SinkOptions
from mama_spark.publishing.batch_config import OnOutage
from mama_spark.publishing.window.retry import is_final

from .job import OutcomeCounts, PartitionReport, SinkJob

if TYPE_CHECKING:
    from mama_spark.flightlog.folder import WriteId


def tolerates_outages(o: SinkOptions) -> bool:
    """Whether rows may fail because of an outage, so that the publisher goes on when nothing is acknowledged."""
    return o.on_error != "fail" and o.error_tolerance == "all"


def on_outage(o: SinkOptions) -> OnOutage:
    overtaken = o.order == "partition" and outage_repeats_task(o)  # rows behind a gap by the repetition of the task
    if o.on_unavailable == "wait":
        return OnOutage.WAIT_AT_GAP if overtaken else OnOutage.WAIT
    if tolerates_outages(o):
        return OnOutage.FAIL_ROWS
    return OnOutage.FAIL_AT_GAP if overtaken else OnOutage.FAIL


def task_must_be_retried(o: SinkOptions, counts: OutcomeCounts) -> bool:
    """Whether the task raises, so that Spark runs it again: an outage made rows fail, and that is not tolerated."""
    return counts.outage_errors > 0 and outage_repeats_task(o)


def outage_repeats_task(o: SinkOptions) -> bool:
    """Whether Spark runs a task again whose rows failed by an outage. With ``onUncertain=report`` and without ids it
    does not: a retry would publish again what is to be reported."""
    return not tolerates_outages(o) and (o.dedup or o.on_uncertain != "report")


def failures_of_write(o: SinkOptions, counts: OutcomeCounts) -> int:
    """Failed rows for which the commit raises."""
    if o.on_error == "fail":
        return counts.row_errors + counts.outage_errors
    return 0 if tolerates_outages(o) else counts.outage_errors


def becomes_dead_letter(o: SinkOptions, error: PublishError) -> bool:
    return o.error_tolerance == "all" or is_final(error)


def knows_ids(o: SinkOptions, capabilities: Capabilities) -> bool:
    """Whether the broker stores two messages of one id once, if ``dedup`` is on."""
    return capabilities.dedup or (not o.dedup and capabilities.ack is Ack.STORED)


def where_logged(job: SinkJob, write_id: WriteId | None) -> str:
    """The part of a failed write's error about its flight log; ``write_id`` None: not known."""
    path = job.options.flight_log
    if path is None:
        return "; no flight log was kept (option flightLog)"
    what = "" if write_id is None else f" (run_id {write_id.run_id!r}, batch_id {write_id.batch_id})"
    return f"; flight log: {path}{what}"


def end_of_task_error(job: SinkJob, report: PartitionReport) -> str:
    """The end of the error of a task that may be repeated: counts, flight log, and the effect of a repetition of the
    write. Other tasks, and earlier attempts, may have stored rows that this attempt knows nothing of."""
    counts = report.counts
    text = f"; partition {report.partition}: {counts.summary()}" if counts.rows else ""
    text += where_logged(job, report.write_id)
    if arrived := _arrived(counts, [report]):
        text += arrived + _repetition(job, [report])
    elif report.knows_ids:
        text += f"; rows of other tasks or attempts may be stored already{_repetition(job, [report])}"
    return text + _way_around_outages(job.options, counts)


def advice_for_repetition(job: SinkJob, counts: OutcomeCounts, reports: Sequence[PartitionReport]) -> str:
    """The part of a failed write's error about rows that have arrived, empty without any: their number, whether a
    repetition of the write stores them again, and what prevents that."""
    o, reports = job.options, [report for report in reports if report.counts.rows]
    arrived = _arrived(counts, reports)
    if not arrived:
        return ""
    return arrived + _repetition(job, reports) + _way_around_bad_rows(o, counts) + _way_around_outages(o, counts)


def _arrived(counts: OutcomeCounts, reports: Sequence[PartitionReport]) -> str:
    done, stored = counts.acked + counts.published, all(report.stores for report in reports)
    rows = "row is" if done == 1 else "rows are"
    return f"; {done:,} {rows} {'stored' if stored else 'published'} already" if done else ""


def _repetition(job: SinkJob, reports: Sequence[PartitionReport]) -> str:
    o = job.options
    if not any(report.knows_ids for report in reports):
        return ", and a repetition of the write publishes them again: this broker does not recognise ids"
    if not o.dedup:
        cure = "dedup=true" if job.streaming else "dedup=true with idPrefix, or with txnAppId and txnVersion,"
        return f", and a repetition of the write stores them again: options {cure} prevent that"
    if o.exactly_once and job.has_name:
        return "; a repetition with the same rows does not store them again, however late it comes (exactlyOnce)"
    shortest = min((r.duplicate_window for r in reports if r.duplicate_window is not None), default=None)
    window = f"within the stream's duplicate window{'' if shortest is None else f' of {shortest:g} s'}"
    options = "exactlyOnce" if job.has_name else "exactlyOnce, txnAppId and txnVersion"
    later = f"; a later repetition needs {options}, from the first run on"
    same_ids = job.has_name or o.id_prefix is not None
    if job.plan.id is not None and o.pack == "off":
        rows = "with the same ids"
    else:
        rows = f"with the same rows in the same partitions{' and order' if o.pack != 'off' else ''}"
        if not same_ids:
            return (
                f", and a repetition of the write stores them again, because its ids have another prefix: repeat it "
                f"with option idPrefix={job.run_id!r} (this run), {rows}, {window}; "
                f"options txnAppId and txnVersion, or an idPrefix of your own, do so for every run{later}"
            )
    return f"; a repetition {rows}, {window}, does not store them again{later}"


def _way_around_bad_rows(o: SinkOptions, counts: OutcomeCounts) -> str:
    """Options with which the rows that failed would not have failed the write."""
    if o.on_error == "fail" and counts.row_errors:
        log = "" if o.flight_log is None else ", or onError=log,"
        return f"; options onError=deadletter with deadLetterTable{log} let a write succeed in spite of bad rows"
    return ""


def _way_around_outages(o: SinkOptions, counts: OutcomeCounts) -> str:
    if o.on_error != "fail" and counts.outage_errors:
        return "; option errorTolerance=all lets a write succeed in spite of outages"
    return ""
