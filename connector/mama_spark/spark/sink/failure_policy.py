"""Which failed rows fail a task or the write, and which become dead letters, by ``onError`` and ``errorTolerance``; and
what an error advises when rows are stored already."""

from __future__ import annotations

from collections.abc import Sequence

from mama_spark.contracts.bridge import Ack, Capabilities
from mama_spark.contracts.errors import PublishError
from mama_spark.options import SinkOptions
from mama_spark.publishing.batch_config import OnOutage
from mama_spark.publishing.window.retry import is_final

from .job import OutcomeCounts, PartitionReport, SinkJob


def tolerates_outages(o: SinkOptions) -> bool:
    """Whether rows may fail because of an outage, so that the publisher goes on when nothing is acknowledged."""
    return o.on_error != "fail" and o.error_tolerance == "all"


def on_outage(o: SinkOptions) -> OnOutage:
    """What the publisher does when nothing is acknowledged."""
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
    """Whether a task of which an outage made rows fail is run again.

    With ``onUncertain=report`` and without ids it is not: a retry would publish again what is to be reported.
    """
    return not tolerates_outages(o) and (o.dedup or o.on_uncertain != "report")


def failures_of_write(o: SinkOptions, counts: OutcomeCounts) -> int:
    """Failed rows for which the commit raises."""
    if o.on_error == "fail":
        return counts.row_errors + counts.outage_errors
    return 0 if tolerates_outages(o) else counts.outage_errors


def becomes_dead_letter(o: SinkOptions, error: PublishError) -> bool:
    """Whether, with ``onError=deadletter``, a row that failed with ``error`` goes to the dead letters."""
    return o.error_tolerance == "all" or is_final(error)


def knows_ids(o: SinkOptions, capabilities: Capabilities) -> bool:
    """Whether the broker stores two messages of one id once, if ``dedup`` is on."""
    return capabilities.dedup or (not o.dedup and capabilities.ack is Ack.STORED)


def advice_for_repetition(job: SinkJob, counts: OutcomeCounts, reports: Sequence[PartitionReport]) -> str:
    """What the error of a failed write says of rows that have arrived: how many, whether a repetition of the write
    stores them again, and what prevents that. Empty if there are none."""
    o, done = job.options, counts.acked + counts.published
    if not done:
        return ""
    stored = all(report.stores for report in reports if report.counts.rows)
    text = f"; {done:,} {'row is' if done == 1 else 'rows are'} {'stored' if stored else 'published'} already"
    return text + _repetition(job, any(report.knows_ids for report in reports)) + _ways_around_bad_rows(o, counts)


def _repetition(job: SinkJob, broker_knows_ids: bool) -> str:
    o = job.options
    if not broker_knows_ids:
        return ", and a repetition of the write publishes them again: this broker does not recognise ids"
    if not o.dedup:
        cure = "dedup=true" if job.streaming else "dedup=true with idPrefix, or with txnAppId and txnVersion,"
        return f", and a repetition of the write stores them again: options {cure} prevent that"
    if o.exactly_once and job.has_name:
        return "; a repetition with the same rows does not store them again, however late it comes (exactlyOnce)"
    same_ids = job.has_name or o.id_prefix is not None
    if job.plan.id is not None and o.pack == "off":
        rows = "with the same ids"
    else:
        rows = f"with the same rows in the same partitions{' and order' if o.pack != 'off' else ''}"
        if not same_ids:
            return (
                f", and a repetition of the write stores them again, because its ids have another prefix: repeat it "
                f"with option idPrefix={job.run_id!r} (this run), {rows}, within the stream's duplicate window; "
                f"options txnAppId and txnVersion, or an idPrefix of your own, do so for every run"
            )
    return f"; a repetition {rows}, within the stream's duplicate window, does not store them again"


def _ways_around_bad_rows(o: SinkOptions, counts: OutcomeCounts) -> str:
    """Options with which the rows that failed would not have failed the write."""
    if o.on_error == "fail" and counts.row_errors:
        log = "" if o.flight_log is None else ", or onError=log,"
        return f"; options onError=deadletter with deadLetterTable{log} let a write succeed in spite of bad rows"
    if o.on_error != "fail" and counts.outage_errors:
        return "; option errorTolerance=all lets a write succeed in spite of outages"
    return ""
