"""Records the outcome of the rows of one partition: flight log, dead letters, counts of the report."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mama_spark.contracts.bridge import Capabilities
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import Bools, Int64s, MessageBatch
from mama_spark.flightlog.log_level import Level
from mama_spark.flightlog.schema import PACKED_ROWS
from mama_spark.mama.publisher.partition_events import PartitionEvents
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.ids.ids import IdMaker
from mama_spark.publishing.wall_clock import WallClock
from mama_spark.publishing.window.flight_batch import FlightBatch, messages_of
from mama_spark.publishing.window.retry import is_final

from .dead_letter_queue import DeadLetterContext, DeadLetterQueue, single_rows_of
from .event_reporter import EventReporter
from .failure_policy import becomes_dead_letter
from .job import PartitionReport, SinkJob, TaskInfo
from .outcomes import count_outcomes, flight_columns, joined_ids, published_columns, with_nulls
from .packs import MakePacks
from .stages import SinkBatch

if TYPE_CHECKING:
    from mama_spark.flightlog.staging import DeadLetterStaging, Staging


class OutcomeRecorder:
    """Calls: :meth:`check_tables`, :meth:`begin`; :meth:`close`. ``report`` gets counts and parts."""

    def __init__(self, job: SinkJob, task: TaskInfo, report: PartitionReport) -> None:
        o, write_id = job.options, report.write_id
        self._job, self._options, self.report = job, o, report
        self._number_prefix = f"{job.run_id}-{report.partition}-{task.unique_attempt}-"
        self._level = Level(o.flight_log_level)
        self._staging: Staging | None = None
        if o.flight_log is not None:
            from mama_spark.flightlog.staging import Staging

            self._staging = Staging(
                o.flight_log, o.storage_options, write_id, report.partition, report.attempt,
                extra=job.log_fields, level=self._level,
            )  # fmt: skip
        self._dead_letter_staging: DeadLetterStaging | None = None
        if o.dead_letter_table is not None:
            from mama_spark.flightlog.staging import DeadLetterStaging

            self._dead_letter_staging = DeadLetterStaging(
                o.dead_letter_table,
                o.storage_options,
                write_id,
                report.partition,
                report.attempt,
                extra=job.dead_letter_fields,
            )
        self._clock = WallClock.anchored()
        events = PartitionEvents(o.topic_events, f"{write_id.prefix}/{report.partition}/{report.attempt}")
        self.events = EventReporter(events, self._clock, self._staging)
        self._dead_letters: DeadLetterQueue | None = None
        self._packs: MakePacks | None
        self._capabilities: Capabilities
        self._streams: list[str] = []

    # --- the task's thread -----------------------------------------------------------------------------------

    def check_tables(self) -> None:
        """Before the first publish.

        :raises FlightLogError: a table cannot be written, or is another one
        :raises Unavailable: storage cannot be reached
        """
        if self._staging is not None:
            self._staging.check(self._job.log_marker)
        if self._dead_letter_staging is not None:
            self._dead_letter_staging.check(self._job.dead_letter_marker)

    def begin(
        self, publisher: BatchPublisher, packs: MakePacks | None, *, with_ids: bool, content_ids: IdMaker | None = None
    ) -> None:
        """Call this before the first batch of flights.

        :param packs: takes back packs that are too large; None = rows are not packed
        :param with_ids: messages carry ids, and the broker recognises them
        :param content_ids: maker of ids for dead letters of rows with ids from a column; None = there is no such column
        """
        self._packs = packs
        self._capabilities, self._streams = publisher.bridge.capabilities, publisher.window.streams
        if self._options.on_error == "deadletter":
            self._dead_letters = DeadLetterQueue(
                self._options.dead_letter_topic, self._dead_letter_staging, with_ids, content_ids
            )

    def take_dead_letters(self, *, all_of_them: bool) -> MessageBatch | None:
        """Dead letters to be published now; None = there are none, or too few unless ``all_of_them``."""
        return None if self._dead_letters is None else self._dead_letters.take(all_of_them=all_of_them)

    @property
    def may_add_messages(self) -> bool:
        """Whether outcomes may cause messages: dead letters, halves of packs."""
        return self._dead_letters is not None or self._options.pack != "off"

    def prepare_files(self) -> None:
        """While outcomes are awaited: open the file that they go to."""
        if self._staging is not None:
            self._staging.prepare()

    def close(self) -> None:
        """Close the part files and put them into the report. May be repeated."""
        if self._staging is not None:
            self.report.parts = self._staging.close()
        if self._dead_letter_staging is not None:
            self.report.dead_letter_parts = self._dead_letter_staging.close()

    def close_quietly(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # --- the publisher's thread ------------------------------------------------------------------------------

    def on_finished(self, flights: FlightBatch) -> None:
        """Record flights that all have their outcome.

        :raises ConfigError, Unavailable: a dead letter was not stored
        """
        batch, context = messages_of(flights), flights.context
        if isinstance(context, SinkBatch):
            split = None if self._packs is None else self._packs.split_too_large(flights, batch, context)
            self.events.flights_finished(flights, batch, split)
            self._record_flights(flights, batch, context, split)
        elif isinstance(context, DeadLetterContext):
            self.events.flights_finished(flights, batch)
            self._check_dead_letters(flights)

    def _record_flights(
        self, flights: FlightBatch, batch: MessageBatch, context: SinkBatch, split: Bools | None
    ) -> None:
        """``split``: True for flights whose rows are sent again in others, without an outcome here; None = none."""
        flight_id = with_nulls(self._flight_ids(batch, context), "ids", flights.errors)
        dead_lettered = self._record_dead_letters(flights, batch, flight_id, context, split)
        rows = context.rows
        counted = rows if split is None or rows is None else np.where(split, 0, rows)
        count_outcomes(self.report.counts, flights, batch, flight_id, counted)
        if self._staging is None:
            return
        columns = flight_columns(
            flights, batch, flight_id, self._streams, self._clock, self._capabilities,
            extra=context.extra, dead_lettered=dead_lettered, payload=self._options.flight_log_payload,
            doubled=context.doubled,
        )  # fmt: skip
        if rows is not None:
            sends = flights.sends if context.sends is None else flights.sends + context.sends
            columns = replace(columns, rows=rows, sends=sends)
        if split is not None:
            columns = columns.take(np.flatnonzero(~split))
        if self._level is Level.ALL:
            published = published_columns(columns)
            if published is not None:
                self._staging.add_flights(published)
        self._staging.add_flights(columns)

    def _flight_ids(self, batch: MessageBatch, context: SinkBatch) -> pa.Array:
        if batch.ids is not None:
            return batch.ids
        if context.unsent_ids is not None:
            return context.unsent_ids
        return joined_ids(self._number_prefix, context.numbers)

    def _record_dead_letters(
        self, flights: FlightBatch, batch: MessageBatch, flight_id: pa.Array, context: SinkBatch, split: Bools | None
    ) -> Bools | None:
        """Flags of the flights that became dead letters, shape (n,); None = none."""
        if self._dead_letters is None or not flights.errors:
            return None
        o, failed = self._options, flights.failed()
        if split is not None:
            failed &= ~split
        chosen = [row for row in np.flatnonzero(failed).tolist() if becomes_dead_letter(o, flights.errors[row])]
        if not chosen:
            return None
        rows: Int64s = np.array(chosen, np.int64)
        errors = [flights.errors[row] for row in chosen]
        failed_at = self._clock.micros(flights.settled[rows])
        self.report.counts.dead_lettered += self._dead_letters.add(
            *single_rows_of(batch.take(rows), flight_id.take(pa.array(rows)), context, errors, failed_at),
            self._dead_letter_columns(context, rows),
        )
        dead_lettered = np.zeros(flights.n, np.bool_)
        dead_lettered[rows] = True
        return dead_lettered

    def _dead_letter_columns(self, context: SinkBatch, rows: Int64s) -> pa.RecordBatch | None:
        if context.extra is None:
            return None
        columns = context.extra.take(pa.array(rows))
        if self._job.log_fields == self._job.dead_letter_fields:
            return columns
        return pa.RecordBatch.from_struct_array(columns.column(PACKED_ROWS).flatten())

    def _check_dead_letters(self, flights: FlightBatch) -> None:
        if not flights.errors:
            return
        for row in np.flatnonzero(flights.failed()).tolist():
            error = flights.errors[row]
            text = f"deadLetterTopic {self._options.dead_letter_topic!r} does not take what failed: {error}"
            raise ConfigError(text) if is_final(error) else Unavailable(text)
