"""``mama jobs``: the programs for ``spark-submit`` in this package, and copies of them to edit; and the release of the
Delta package for the installed Spark, and its jars on this machine."""

from __future__ import annotations

import argparse
import json
import os
import pwd
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...contracts.errors import ConfigError
from ...jobs import configuration_files, copy, find, jobs

_IVY = ".ivy2.5.2"
#: Of Spark.
_RELEASES = ("4.0", "4.1", "4.2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--list", action="store_true", help="jobs and configuration files (also without arguments)")
    wanted.add_argument("--path", metavar="NAME", help="file of a job: spark-submit $(mama jobs --path publish)")
    wanted.add_argument(
        "--copy",
        metavar="NAME",
        help="copy a job with its configuration file, or one configuration file, into jobs/ and conf/ of FOLDER",
    )
    wanted.add_argument(
        "--delta-jars",
        action="store_true",
        help='jars of Delta on this machine, without a resolver at each start: spark-submit --jars "$(mama jobs '
        '--delta-jars)"',
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON for each job or file")
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="folder of --copy (default: the current one)")


def run(args: argparse.Namespace) -> int:
    if args.folder is not None and args.copy is None:
        raise ConfigError(f"FOLDER is used by --copy only; got {args.folder!r}")
    if args.path is not None:
        _say_path(find(args.path).path, args.json)
    elif args.delta_jars:
        found = [str(jar) for jar in delta_jars()]
        print(json.dumps({"jars": found}) if args.json else ",".join(found))
    elif args.copy is not None:
        for path in copy(args.copy, Path(args.folder or ".")):
            _say_path(path, args.json)
    elif args.json:
        for job in jobs():
            fields = {"name": job.name, "summary": job.summary, "needs": job.needs, "path": str(job.path)}
            print(json.dumps(fields, ensure_ascii=False))
    else:
        _show()
    return 0


def _say_path(path: Path, as_json: bool) -> None:
    print(json.dumps({"path": str(path)}, ensure_ascii=False) if as_json else path)


def _show() -> None:
    for job in jobs():
        print(f"{job.name}\n    {job.summary}\n    Needs {job.needs}.")
    print(f"""
configuration files: {" ".join(configuration_files())}

mama jobs --copy publish                                          copies it, with its configuration file to edit
spark-submit jobs/publish.py --conf-file conf/publish.toml        runs the copy
python -m mama_spark.jobs.publish --conf-file conf/publish.toml   runs it where the package is installed""")


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
    """The home folder of the account, whatever ``HOME`` says: Spark puts jars there."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # an account without a name, as containers have
        return Path.home()
