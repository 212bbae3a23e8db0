"""Reports the progress of a partition to the driver, which shows one bar for the whole write, and to the log."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from mama_spark.console.progress import LINE_INTERVAL
from mama_spark.publishing.batch_publisher import BatchPublisher

from ..write_counts import TaskCounts, encode
from .job import TaskInfo

logger = logging.getLogger("mama_spark")

#: Seconds.
REPORT_INTERVAL = 0.5
#: A receiver of the counts, and its interval in seconds.
_Sink = tuple[Callable[[TaskCounts], object], float]


class ProgressReporter:
    """Reports every now and then, from its own thread, so that a standstill shows too; no thread without a listener.

    :param job: names the write, or the micro-batch
    :param announce: gets the counts, too, every ``announce_interval`` seconds; None = nobody
    """

    def __init__(
        self,
        job: str,
        task: TaskInfo,
        publisher: BatchPublisher,
        announce: Callable[[TaskCounts], object] | None = None,
        announce_interval: float = math.inf,
    ) -> None:
        self._publisher, self._stop = publisher, threading.Event()
        self._counts = TaskCounts(job, task.partition, task.unique_attempt)
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        sinks: list[_Sink] = []
        if task.progress is not None:
            sinks.append((self._to_driver(task.progress), REPORT_INTERVAL))
        if announce is not None:
            sinks.append((announce, announce_interval))
        if logger.isEnabledFor(logging.INFO):
            sinks.append((_to_log(), LINE_INTERVAL))
        if sinks:
            self._thread = threading.Thread(target=self._run, args=(sinks,), name="mama-progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._socket is not None:
            self._socket.close()

    def _run(self, sinks: list[_Sink]) -> None:
        interval, ended, publisher = min(every for _, every in sinks), False, self._publisher
        due = [time.monotonic() + every / 2 for _, every in sinks]
        while not ended:
            ended, counters = self._stop.wait(interval), publisher.counters
            counts = replace(
                self._counts, taken=counters.opened, acked=counters.acked + counters.published,
                failed=counters.failed + counters.timed_out, in_flight=publisher.window.in_flight,
                waits_for="" if ended else publisher.waits_for, ended=ended,
            )  # fmt: skip
            now = time.monotonic()
            for i, (report, every) in enumerate(sinks):
                if ended or now >= due[i]:
                    due[i] = now + every - interval / 2
                    report(counts)

    def _to_driver(self, address: str) -> Callable[[TaskCounts], object]:
        host, port, token = address.rsplit(":", 2)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = sender = socket.socket(family, socket.SOCK_DGRAM)
        sender.setblocking(False)

        def send(counts: TaskCounts) -> None:
            with contextlib.suppress(OSError):  # the bar lacks a report, and the write goes on
                sender.sendto(encode(token, counts), (host, int(port)))

        return send


def _to_log() -> Callable[[TaskCounts], object]:
    began = time.monotonic()

    def log(counts: TaskCounts) -> None:
        logger.info(
            "partition %d: %s messages taken, %s acknowledged, %s failed, %s in flight, %.0f s%s",
            counts.partition, f"{counts.taken:,}", f"{counts.acked:,}", f"{counts.failed:,}", f"{counts.in_flight:,}",
            time.monotonic() - began, f"; waits for {counts.waits_for}" if counts.waits_for else "",
        )  # fmt: skip

    return log
