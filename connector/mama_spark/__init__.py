"""Spark and messaging middleware: publish DataFrames, and know what became of every row.

Importing this package imports neither pyspark nor a client library: Spark imports every ``pyspark_*`` root
module unguarded, and one that raises disables all Python data sources of the session.
"""

from __future__ import annotations

__version__ = "0.1.0"
