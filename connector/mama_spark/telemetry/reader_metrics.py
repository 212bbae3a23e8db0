"""Instruments of one reading task: counters, and histograms of one value a batch of records."""

from __future__ import annotations

from typing import Any

#: Seconds.
_FETCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DELAY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
#: Counter -> unit, what it says.
_COUNTERS = {
    "messages": ("{message}", "messages that were read"),
    "payload": ("By", "octets of their payloads, as they are stored"),
    "rows": ("{row}", "rows that they became"),
    "undecodable": ("{message}", "messages that could not be decoded, unpacked or decompressed"),
    "connection.losses": ("{connection}", "lost connections, and servers that did not answer"),
}


class ReaderMetrics:
    """One value for each batch of some thousand records, so that the cost does not depend on the rate.

    :param meter: of OpenTelemetry
    :param attributes: of all measurements; few different values
    """

    def __init__(self, meter: Any, attributes: dict[str, str]) -> None:
        self._attributes = attributes
        self._counters = {
            name: meter.create_counter(f"mama.reader.{name}", unit=unit, description=text)
            for name, (unit, text) in _COUNTERS.items()
        }
        self._fetch = meter.create_histogram(
            "mama.reader.fetch.duration", unit="s", description="wait for the next batch of messages",
            explicit_bucket_boundaries_advisory=_FETCH_BUCKETS,
        )  # fmt: skip
        self._delay = meter.create_histogram(
            "mama.reader.delay", unit="s", description="from storing a message to reading it, of the last of a batch",
            explicit_bucket_boundaries_advisory=_DELAY_BUCKETS,
        )  # fmt: skip
        for counter in self._counters.values():
            counter.add(0, attributes)  # a rate of what never happened is 0, and not nothing

    def add(self, name: str, number: int) -> None:
        """
        :param name: ``messages``, ``payload``, ``rows``, ``undecodable`` or ``connection.losses``
        """
        if number:
            self._counters[name].add(number, self._attributes)

    def fetched(self, seconds: float, delay: float) -> None:
        """A batch of messages came.

        :param seconds: that it was waited for
        :param delay: seconds since its last message was stored
        """
        self._fetch.record(seconds, self._attributes)
        self._delay.record(max(0.0, delay), self._attributes)  # the clocks of two machines
