"""What a Tango recorder counts, as metrics."""

from __future__ import annotations

from ...telemetry.prometheus.exposition import Metric, counter, gauge
from .recorder import RecorderCounts


def measure(counts: RecorderCounts, name: str) -> list[Metric]:
    """:param name: of the recorder"""
    labels = {"recorder": name, "network": "tango"}
    return [
        gauge("mama_recorder_subscriptions", "subscriptions that were made", counts.subscriptions, labels),
        gauge(
            "mama_recorder_subscriptions_refused", "of them, those that servers refused", counts.not_accepted, labels
        ),
        counter("mama_recorder_records_total", "records that were made", counts.recorded, labels),
        counter("mama_recorder_stored_total", "records that the log acknowledged", counts.stored, labels),
        gauge("mama_recorder_waiting", "events and records that the log has not acknowledged", counts.waiting, labels),
        counter("mama_recorder_dropped_total", "events that the full queue dropped", counts.dropped, labels),
        counter("mama_recorder_gaps_total", "gap records: what is known to be missing", counts.gaps, labels),
        counter("mama_recorder_refused_total", "records that the log rejected", counts.refused, labels),
    ]
