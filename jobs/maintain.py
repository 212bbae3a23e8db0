"""Maintains flight logs and dead-letter tables: merges small files, drops old rows, removes files that nobody needs.

Needs flight logs or dead-letter tables. Runs beside jobs that write them.

spark-submit jobs/maintain.py --conf-file conf/maintain.toml

It uses no SparkSession: ``python -m mama_spark.jobs.maintain`` runs it without Spark, from cron for instance.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from typing import Any

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.flightlog.maintenance import ORPHAN_AGE, maintain
from mama_spark.options.conf_file import load
from mama_spark.options.times import duration

SETTINGS = ("tables", "keep", "older_than")


def age(conf: dict[str, Any], name: str) -> timedelta | None:
    text = conf.get(name)
    if text is None:
        return None
    try:
        return timedelta(seconds=duration.with_unit(text))
    except ValueError as e:
        raise ConfigError(f"[maintain] {name}: {e}, got {text!r}") from None


def run(conf: dict[str, Any], storage: dict[str, str]) -> int:
    """Maintain each table, whatever becomes of the others; how many failed."""
    if unknown := [name for name in conf if name not in SETTINGS]:
        raise ConfigError(f"[maintain] has no setting {unknown[0]!r}; it has {', '.join(SETTINGS)}")
    tables = conf.get("tables", [])
    if not isinstance(tables, list) or not tables:
        raise ConfigError('[maintain] tables must be a list of paths, such as ["data/flight_log"]')
    keep, older_than = age(conf, "keep"), age(conf, "older_than") or ORPHAN_AGE
    failed = 0
    for path in tables:
        try:
            print(f"{path}: {maintain(path, storage, keep, older_than).text()}", flush=True)
        except MamaError as e:
            print(f"{path}: {e}", file=sys.stderr, flush=True)
            failed += 1
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, ("maintain", "storage"))
    if run(conf["maintain"], {name: str(value) for name, value in conf["storage"].items()}):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
