"""The outcome of the last write of this application."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..contracts.errors import ConfigError, FlightLogError
from ..flightlog.schema import IS_FAILED
from .read_flight_log import flight_log
from .register import has_jvm
from .write_note import COUNTS, NOTE, REPEATS

if TYPE_CHECKING:
    from ..report.page import Report


@dataclass(frozen=True)
class LastWrite:
    """The last write. Notebooks show it where it is the value of a cell.

    :ivar counts: numbers of rows of the attempts that Spark committed, each row once; acked + published (with
        ``ackMode=none``) + failed + timed_out = rows; duplicates, dead_lettered and perhaps_twice
        (``onSilentServer=publish``) count parts of these
    :ivar reasons: numbers of failed rows by reason; of many reasons, the most frequent ones
    :ivar committed: whether Spark was told that the write succeeded, and its rows are in the tables as committed
    :ivar repeats: an earlier run had committed this ``txnVersion`` or micro-batch, so this run's rows are in the tables
        as not committed; Spark was told that the write succeeded
    :ivar flight_log: path of the log; None = none was kept
    """

    spark: SparkSession
    counts: dict[str, int]
    reasons: dict[str, int]
    committed: bool
    repeats: bool
    flight_log: str | None
    run_id: str | None
    query_id: str | None
    batch_id: int | None

    @property
    def failures(self) -> DataFrame:
        """The failed flights of this write, without superseded attempts. The session needs Delta.

        :raises FlightLogError: no log was kept
        """
        log = self._log()
        attempts = log if log.where("committed").isEmpty() else log.where("committed")
        return attempts.where(f"kind = 'flight' AND {IS_FAILED}")

    def report(self) -> Report:
        """The report page of this run; needs the extra ``report``.

        :raises FlightLogError: no log was kept
        """
        from ..report.page import report

        return report(self._path(), run=self.run_id)

    def _log(self) -> DataFrame:
        log = flight_log(self.spark, self._path())
        log = log.where(F.col("run_id").eqNullSafe(F.lit(self.run_id)))
        return log if self.batch_id is None else log.where(F.col("batch_id").eqNullSafe(self.batch_id))

    def _path(self) -> str:
        if self.flight_log is None or self.run_id is None:
            raise FlightLogError("the last write kept no flight log: set option flightLog")
        return self.flight_log

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.counts[name]:,} {name}" for name in COUNTS if self.counts.get(name))
        return f"<LastWrite {self._state}: {counts or 'no rows'}; log {self.flight_log}>"

    @property
    def _state(self) -> str:
        return "committed" if self.committed else f"not committed, {REPEATS}" if self.repeats else "failed"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{number:,}</td></tr>"
            for name, number in [*((n, self.counts.get(n, 0)) for n in COUNTS), *self.reasons.items()]
            if number or name in ("rows", "acked", "failed")
        )
        return (
            f"<b>Last write: {self._state}</b><table>{rows}</table>"
            f"flight log: {html.escape(str(self.flight_log or 'none was kept'))}"
        )


def last_write(spark: SparkSession) -> LastWrite | None:
    """The last ended write or micro-batch of ``mamapub`` in this application, successful or not; None = there is none.

    A write of which all tasks failed has no counts: ``committed`` is False, and the log has what there is.

    :raises ConfigError: the session is one of Spark Connect, whose driver is elsewhere
    """
    if not has_jvm(spark):
        raise ConfigError("last_write() needs a driver of its own; with Spark Connect use mama_spark.report(path)")
    for folder in spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirs():  # type: ignore[union-attr]
        note = Path(folder.getPath(), NOTE)
        if note.exists():
            fields: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
            return LastWrite(spark, **fields)
    return None
