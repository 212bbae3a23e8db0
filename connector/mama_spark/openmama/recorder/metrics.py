"""What a recorder of OpenMAMA messages counts, as metrics: under the names of those of Tango where it is the same."""

from __future__ import annotations

from ...telemetry.prometheus.exposition import Metric, counter, gauge
from .recorder import OpenMamaRecorderCounts


def measure(counts: OpenMamaRecorderCounts, name: str, framing: str) -> list[Metric]:
    """
    :param name: of the recorder
    :param framing: of its network
    """
    labels = {"recorder": name, "network": framing}
    return [
        gauge("mama_recorder_symbols", "symbols that were asked for", counts.symbols, labels),
        gauge("mama_recorder_images", "of them, those whose image came", counts.images, labels),
        counter("mama_recorder_records_total", "records that were made", counts.recorded, labels),
        counter("mama_recorder_stored_total", "records that the log acknowledged", counts.stored, labels),
        gauge("mama_recorder_waiting", "messages and records that are not acknowledged", counts.waiting, labels),
        counter("mama_recorder_gaps_total", "gap records: what is known to be missing", counts.gaps, labels),
        counter("mama_recorder_refused_total", "records that the log rejected", counts.refused, labels),
        counter("mama_recorder_unreadable_total", "messages of no such framing", counts.unreadable, labels),
    ]
