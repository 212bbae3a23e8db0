"""What ``mama tango-source`` counts, as metrics."""

from __future__ import annotations

from ....telemetry.prometheus.exposition import Metric, counter, gauge
from .log_replayer import ReplayCounts


def measure(
    server: str,
    stream: str,
    counts: ReplayCounts,
    *,
    sent: int,
    not_delivered: int,
    subscriptions: int,
    devices: int,
    attributes: int,
    lag: int,
) -> list[Metric]:
    """
    :param server: ``exe/instance``
    :param sent: messages that clients had subscribed to
    :param subscriptions: events of attributes that clients receive
    :param lag: records of the log that were not served yet
    """
    labels = {"server": server, "stream": stream}
    return [
        counter("mama_tango_source_records_total", "records that were served", counts.records, labels),
        counter("mama_tango_source_messages_total", "messages that were sent to clients", sent, labels),
        counter("mama_tango_source_not_delivered_total", "events that clients missed while they were away",
                not_delivered, labels),
        counter("mama_tango_source_skipped_total", "records of other sources or kinds", counts.skipped, labels),
        counter("mama_tango_source_bad_total", "records that could not be served", counts.bad, labels),
        gauge("mama_tango_source_lag", "records of the log that were not served yet", lag, labels),
        gauge("mama_tango_source_devices", "devices", devices, labels),
        gauge("mama_tango_source_attributes", "attributes", attributes, labels),
        gauge("mama_tango_source_subscriptions", "events of attributes that clients receive", subscriptions, labels),
    ]  # fmt: skip
