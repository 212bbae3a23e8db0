"""Publishes Spark DataFrames to messaging middleware and records the outcome of every row.

Importing this package imports neither pyspark nor a client library: Spark imports every ``pyspark_*`` root
module unguarded, and one that raises disables all Python data sources of the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_names import lazy

if TYPE_CHECKING:
    from .publishing.managed.managed_publisher import ManagedPublisher
    from .report.page import report
    from .spark.announced import announced
    from .spark.last_write import LastWrite, last_write
    from .spark.merge_changes import merge_changes
    from .spark.plain_errors import last_line, stopping
    from .spark.query_progress import QueryProgress, lag
    from .spark.read_flight_log import flight_log
    from .spark.register import register
    from .spark.write_progress import progress
    from .telemetry.spans import trace_context

__version__ = "0.2.0"
__all__ = [
    "LastWrite", "ManagedPublisher", "QueryProgress", "announced", "flight_log", "lag", "last_line", "last_write",
    "merge_changes", "progress", "register", "report", "stopping", "trace_context",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "LastWrite": "spark.last_write", "ManagedPublisher": "publishing.managed.managed_publisher",
            "QueryProgress": "spark.query_progress", "announced": "spark.announced",
            "flight_log": "spark.read_flight_log", "lag": "spark.query_progress", "last_line": "spark.plain_errors",
            "last_write": "spark.last_write", "merge_changes": "spark.merge_changes",
            "progress": "spark.write_progress", "register": "spark.register",
            "report": "report.page", "stopping": "spark.plain_errors", "trace_context": "telemetry.spans",
        },
    )  # fmt: skip
