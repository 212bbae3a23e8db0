"""Spark finds the format ``mamapub`` here: it imports all root modules ``pyspark_*`` and takes their DefaultSource.

Spark imports them unguarded, so one that raises would disable all Python data sources of the session. Where the
sink cannot be imported (another pyspark, a missing library), the session goes on without this format.
"""

from __future__ import annotations

try:
    from mama_spark.spark.formats import MamaPubDataSource as DefaultSource  # noqa: F401
except Exception as e:  # noqa: BLE001 - see above; Spark itself would only say that it does not know the format
    import logging

    logging.getLogger("mama_spark").warning("the format mamapub is not available: %s", e)
