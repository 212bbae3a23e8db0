"""Registers the formats in a session that does not find them: Spark finds them in installed packages, not in files of
``--py-files``."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession

_ROOTS = ("pyspark_mamapub", "pyspark_mamasub", "pyspark_mamadiscovery")
#: Files that pyspark puts on the path of its workers (``SparkContext.PACKAGE_EXTENSIONS``); wheels are not among them.
_ACCEPTED = (".zip", ".egg", ".jar")


def register(spark: SparkSession) -> None:
    """Register ``mamapub``, ``mamasub`` and ``mamadiscovery`` in ``spark``, and send the package to its workers::

        spark-submit --py-files mama_spark-0.1.0-py3-none-any.whl job.py     # job.py: mama_spark.register(spark)

    Not needed where the package is installed, and harmless there.

    :raises ImportError: a dependency of the package is missing
    """
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is not None and Path(archive).suffix.lower() not in _ACCEPTED:
        spark.sparkContext.addPyFile(str(_as_zip(Path(archive))))
    for root in _ROOTS:
        spark.dataSource.register(import_module(root).DefaultSource)


def _as_zip(wheel: Path) -> Path:
    """A copy with an extension that pyspark accepts, in a folder that Spark removes when the application ends."""
    copy = Path(SparkFiles.getRootDirectory(), "mama_spark", f"{wheel.stem}.zip")
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(wheel, copy)
    return copy
