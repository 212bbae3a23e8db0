"""Logs the progress of long writes."""

from __future__ import annotations

import logging
import threading
import time

from mama_spark.publisher.batch_publisher import BatchPublisher

log = logging.getLogger("mama_spark")

#: Seconds between progress lines.
PROGRESS_INTERVAL = 5.0


class ProgressLogger:
    """Logs a line every few seconds, from a thread of its own, so that a standstill shows too."""

    def __init__(self, partition: int, publisher: BatchPublisher) -> None:
        self._stop = threading.Event()
        self._partition, self._publisher = partition, publisher
        self._thread = threading.Thread(target=self._run, name="mama-progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began, before = time.monotonic(), 0
        while not self._stop.wait(PROGRESS_INTERVAL):
            counters = self._publisher.counters
            done = counters.acked + counters.published
            log.warning(
                "partition %d: %s messages taken, %s acknowledged (%s/s),"
                " %s failed, %s timed out, %s in flight, %.0f s",
                self._partition, f"{counters.opened:,}", f"{done:,}", f"{(done - before) / PROGRESS_INTERVAL:,.0f}",
                f"{counters.failed:,}", f"{counters.timed_out:,}", self._publisher.window.in_flight,
                time.monotonic() - began,
            )  # fmt: skip
            before = done

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
