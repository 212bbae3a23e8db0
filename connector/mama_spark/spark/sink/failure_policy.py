"""Which failed rows fail a task or the write, and which become dead letters, by ``onError`` and ``errorTolerance``."""

from __future__ import annotations

from mama_spark.errors import PublishError
from mama_spark.options import SinkOptions
from mama_spark.sending.retry import is_final

from .job import OutcomeCounts


def tolerates_outages(o: SinkOptions) -> bool:
    """Whether rows may fail because of an outage, so that the publisher goes on when nothing is acknowledged."""
    return o.on_error != "fail" and o.error_tolerance == "all"


def task_must_be_retried(o: SinkOptions, counts: OutcomeCounts) -> bool:
    """Whether the task raises, so that Spark runs it again: an outage made rows fail, and that is not tolerated.

    With ``onUncertain=report`` and without ids it does not: a retry would publish again what is to be reported.
    """
    if not counts.outage_errors or tolerates_outages(o):
        return False
    return o.dedup or o.on_uncertain != "report"


def failures_of_write(o: SinkOptions, counts: OutcomeCounts) -> int:
    """Failed rows for which the commit raises."""
    if o.on_error == "fail":
        return counts.row_errors + counts.outage_errors
    return 0 if tolerates_outages(o) else counts.outage_errors


def becomes_dead_letter(o: SinkOptions, error: PublishError) -> bool:
    """Whether, with ``onError=deadletter``, a row that failed with ``error`` goes to the dead letters."""
    return o.error_tolerance == "all" or is_final(error)
