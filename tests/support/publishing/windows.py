"""Drives a window by hand: time is what the test says."""

from __future__ import annotations

import numpy as np
from mama_spark.contracts.bridge import Acks, Refusals
from mama_spark.contracts.errors import PublishError
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.publishing.window.window import Window


def launched(policy: WindowConfig, n: int, *, non_retriable: np.ndarray | None = None) -> tuple[Window, FlightBatch]:
    """A window with ``n`` flights, of which as many are under way as it takes."""
    window = Window(policy)
    flights = window.open(n)
    flights.non_retriable = non_retriable
    window.launch(flights, slice(0, window.capacity(flights, 0, 0.0)), 0.0)
    return window, flights


def refuse(window: Window, tokens: list[int], error: PublishError, at: float) -> None:
    window.refused(Refusals(np.array(tokens, np.int64), error, at))


def ack(window: Window, tokens: list[int], at: float = 0.0) -> None:
    window.acked(Acks(np.array(tokens, np.int64), None, None, None, at))


def due(window: Window, now: float) -> list[int]:
    """Rows that go again now; they are sent."""
    found = list[int]()
    for flights, rows in window.due(now):
        found += rows.tolist()
        window.relaunch(flights, rows, now)
    return found
