"""Registers the formats in a session that does not find them: Spark finds them in installed packages, not in files of
``--py-files``, and only through the session that is active in the thread."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from ..contracts.errors import OptionError

logger = logging.getLogger("mama_spark")

_ROOTS = ("pyspark_mamapub", "pyspark_mamasub", "pyspark_mamadiscovery")
#: Files that pyspark puts on the path of its workers (``SparkContext.PACKAGE_EXTENSIONS``); wheels are not among them.
_ACCEPTED = (".zip", ".egg", ".jar")
#: Folder, below the one where Spark has the application's files, in which the driver's processes that plan a stream
#: look for them; Spark puts nothing there.
_OF_STREAMS = "streaming_job"


def register(spark: SparkSession) -> None:
    """Register ``mamapub``, ``mamasub`` and ``mamadiscovery`` in ``spark``, send the package to its workers, and make
    ``spark`` the active session of this thread::

        spark-submit --py-files mama_spark-0.2.0-py3-none-any.whl job.py     # job.py: mama_spark.register(spark)

    Needed once where the package is not installed, and once in each further thread that reads or writes, because Spark
    fails there with ``DATA_SOURCE_NOT_FOUND`` otherwise::

        with ThreadPoolExecutor(4, initializer=mama_spark.register, initargs=(spark,)) as threads:
            writes = [threads.submit(write, frame) for frame in frames]

    Harmless everywhere else. On one machine, workers then run the interpreter of the driver where nobody has named one
    (``PYSPARK_PYTHON``); Spark would run ``python3`` of the ``PATH``. ``mamasub`` then reads with as many tasks as the
    cluster runs at once, and not with one for each core of the driver's machine. What the configuration of ``spark``
    has as ``spark.mama.<option>`` is the default of that option from now on.

    :raises ImportError: a dependency of the package is missing
    :raises OptionError: such a default is none of any format, or this is Spark 4.0 and the package is installed
    """
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is not None and has_jvm(spark):
        copy = _copied(Path(archive))
        if copy.name != Path(archive).name:
            spark.sparkContext.addPyFile(str(copy))
    if has_jvm(spark):
        _run_this_python(spark)
    defaults = _defaults(spark)
    for root in _ROOTS:
        source = _sized(import_module(root).DefaultSource, spark)
        if defaults:
            source = type(source.__name__, (source,), {"session_defaults": defaults})
        _register(source, spark)
    _activate(spark)


def _defaults(spark: SparkSession) -> dict[str, str]:
    conf = spark.conf.getAll
    if not any(key.startswith("spark.mama.") for key in conf):
        return {}
    from .session_defaults import session_defaults

    return session_defaults(conf)


def _register(source: type[DataSource], spark: SparkSession) -> None:
    try:
        spark.dataSource.register(source)
    except AnalysisException as e:  # Spark 4.0 keeps the source that it has found in an installed package
        if e.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        if getattr(source, "session_defaults", None):  # what is published without them goes to another server
            raise OptionError(
                "this Spark keeps the formats that it finds in the installed package, which have no defaults: remove "
                "spark.mama.* from its configuration, and give the options in the query"
            ) from None
        here, there = len(os.sched_getaffinity(0)), getattr(source, "cluster_cores", None) or 0
        if there > here:
            logger.warning(
                "mamasub plans its tasks for the %s cores of this machine, because register() cannot tell this Spark "
                "that the cluster has %s: name the number with option minPartitions", here, there,
            )  # fmt: skip


def _run_this_python(spark: SparkSession) -> None:
    """``python3`` of the ``PATH`` is another interpreter where the environment of the driver is not activated."""
    context = spark.sparkContext
    named = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & os.environ.keys()
    if str(context.master).startswith("local") and not named and not context.getConf().contains("spark.pyspark.python"):
        context.pythonExec = sys.executable


def _sized(source: type[DataSource], spark: SparkSession) -> type[DataSource]:
    if not hasattr(source, "cluster_cores") or not has_jvm(spark):
        return source
    return sized_for(source, spark.sparkContext.defaultParallelism)


def sized_for(source: type[DataSource], cores: int) -> type[DataSource]:
    """A class like ``source`` that knows how many tasks run at once: Spark pickles it; planning can ask no session."""
    return type(source.__name__, (source,), {"cluster_cores": cores})


def has_jvm(spark: SparkSession) -> bool:
    """False with Spark Connect, which does not tell the size of the cluster either."""
    return getattr(spark, "_jsparkSession", None) is not None


def _activate(spark: Any) -> None:
    """Make ``spark`` the active session of this thread: Spark looks Python data sources up in no other, and no session
    is active in a new thread of the JVM. Internals of pyspark, used only here."""
    if has_jvm(spark):  # Spark Connect looks up in the session of each request
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def _copied(archive: Path) -> Path:
    """A copy for the processes that plan streams, with an extension that pyspark accepts. Spark removes its folder at
    the end of the application."""
    name = archive.name if archive.suffix.lower() in _ACCEPTED else f"{archive.stem}.zip"
    copy = Path(SparkFiles.getRootDirectory(), _OF_STREAMS, name)
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(archive, copy)
    return copy
