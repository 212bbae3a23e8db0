"""Spark finds the format ``mamasub`` here; see ``pyspark_mamapub`` for why the import is guarded."""

from __future__ import annotations

try:
    from mama_spark.spark.formats import MamaSubDataSource as DefaultSource  # noqa: F401
except Exception as e:  # noqa: BLE001 - one that raises would disable all Python data sources of the session
    import logging

    logging.getLogger("mama_spark").warning("the format mamasub is not available: %s", e)
