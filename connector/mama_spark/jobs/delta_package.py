"""The release of the Delta package for the installed Spark, and its jars on this machine."""

from __future__ import annotations

import os
import pwd
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..contracts.errors import ConfigError
from . import find

_IVY = ".ivy2.5.2"
#: Of Spark.
_RELEASES = ("4.0", "4.1", "4.2")


def delta_package(spark: str | None = None) -> str:
    """The package of Delta for a version of Spark (None: the installed one, or 4.2), for ``--packages``. ConfigError:
    there is none."""
    if spark is None:
        try:
            spark = version("pyspark")
        except PackageNotFoundError:
            spark = "4.2"
    if spark[:3] not in _RELEASES:
        raise ConfigError(
            f"Delta has no release for Spark {spark[:3]}: start jobs that need it with Spark {_RELEASES[-1]}; "
            "mama report and mama audit need no Spark"
        )
    return f"io.delta:delta-spark_{spark[:3]}_2.13:4.4.0"


def delta_jars() -> list[Path]:
    """The jars of :func:`delta_package` that ``--packages`` has brought to this machine, for ``--jars``; Spark has the
    others. ConfigError: they are not there."""
    package = delta_package()
    group, name, release = package.split(":")
    mine = Path.home() / _IVY
    for ivy in (mine, _home_of_java() / _IVY):
        found = sorted((ivy / "jars").glob(f"{group}_*-{release}.jar"))
        own = [jar for jar in found if jar.name.startswith(f"{group}_{name}-")]
        if own:  # and not those of another Spark
            return own + [jar for jar in found if not jar.name.startswith(f"{group}_delta-spark_")]
    raise ConfigError(
        f"the jars of Delta are not in {mine}; fetch them once: spark-submit --conf spark.jars.ivy={mine} "
        f"--packages {package} {find('report').path} --help"
    )


def _home_of_java() -> Path:
    """Where Spark puts them: the home folder of the account, whatever ``HOME`` says."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # an account without a name, as containers have
        return Path.home()
