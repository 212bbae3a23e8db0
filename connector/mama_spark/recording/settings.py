"""Settings that every recorder has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from ..options.declare import option
from ..options.times import duration, duration_or_off
from ..options.values import nonempty_text

GROUP = "recorder"
REPORT = option(
    "duration", duration_or_off, 60.0, GROUP, "Interval of lines of progress; 0 or `off`: none.", shown="60s"
)
METRICS = option(
    "text", nonempty_text, None, GROUP, "`host:port` of an HTTP server: Prometheus text at `/metrics`.", shown="none"
)
DRAIN = option(
    "duration", duration, 10.0, GROUP, "Longest wait at the end for acknowledgements of the log.", shown="10s"
)


class RecorderSettings(Protocol):
    """Of the recorder of one middleware; durations are in seconds. ``of(given)`` makes them from a table."""

    middleware: ClassVar[str]

    @property
    def name(self) -> str: ...
    @property
    def report(self) -> float: ...
    @property
    def metrics(self) -> str | None: ...
    @property
    def drain(self) -> float: ...

    @property
    def subject(self) -> tuple[Sequence[str], str, str]:
        """What is recorded: names, what they are names of, and where that is."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the metrics."""
