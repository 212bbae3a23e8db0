"""What ``mama mama-source`` counts, as metrics."""

from __future__ import annotations

from collections.abc import Mapping

from ...telemetry.prometheus.exposition import Metric, counter, gauge

#: Count of the server -> name, what it counts.
_COUNTERS = {
    "records": ("records", "records of the log that were taken"),
    "other topics": ("other_topics", "of them, those of other topics"),
    "bad records": ("bad", "of them, those that could not be served"),
    "messages": ("messages", "messages that were published"),
    "requests": ("requests", "requests of subscribers"),
    "answers": ("answers", "answers to requests"),
}


def measure(source: str, counts: Mapping[str, int], symbols: int, subscriptions: int, waiting: int) -> list[Metric]:
    """
    :param source: its name
    :param waiting: messages that subscribers have not taken
    """
    labels = {"source": source}
    return [
        *(
            counter(f"mama_source_{name}_total", text, counts.get(key, 0), labels)
            for key, (name, text) in _COUNTERS.items()
        ),
        gauge("mama_source_symbols", "symbols that have a value", symbols, labels),
        gauge("mama_source_subscriptions", "topics and prefixes that subscribers want", subscriptions, labels),
        gauge("mama_source_waiting", "messages that subscribers have not taken", waiting, labels),
    ]
