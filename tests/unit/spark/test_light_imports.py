"""What Spark's planner and its workers load when they find, make and unpickle a format: nothing that only publishing,
reading or committing needs. Each of these processes is new, and pays for every module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Libraries and parts of this package that must not be loaded.
HEAVY = (
    "IPython",
    "altair",
    "argcomplete",
    "asyncio",
    "deltalake",
    "hypothesis",
    "nacl",
    "nats",
    "pandas",
    "psutil",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "opentelemetry",
    "prometheus_client",
    "pytest",
    "rich",
    "ssl",
    "textual",
    "xxhash",
    "zmq",
    "mama_spark.bridges.nats.publish",
    "mama_spark.bridges.nats.read",
    "mama_spark.bridges.nats.discovery",
    "mama_spark.console",
    "mama_spark.flightlog.commit",
    "mama_spark.flightlog.storage",
    "mama_spark.live_view",
    "mama_spark.malamute",
    "mama_spark.packing.unpacker",
    "mama_spark.publisher",
    "mama_spark.report_page",
    "mama_spark.sending",
    "mama_spark.services",
    "mama_spark.spark.sink.partition_writer",
    "mama_spark.spark.sink.outcome_recorder",
    "mama_spark.spark.subscribe.packed_rows",
    "mama_spark.tango",
    "mama_spark.testing",
)
#: pyspark and pyarrow are there already; what they load is not counted.
BEFORE = """
import json, pickle, sys
import pyarrow, pyspark.sql.datasource, pyspark.sql.types as T
from pyspark.sql.pandas.types import from_arrow_schema
before = set(sys.modules)
"""
AFTER = "\nprint(json.dumps(sorted(set(sys.modules) - before)))"
FOUND = "import pyspark_mamapub, pyspark_mamasub, pyspark_mamadiscovery\n"
WRITER = """
from pyspark_mamapub import DefaultSource
schema = T.StructType([T.StructField(n, T.StringType()) for n in ("topic", "value", "number")])
source = DefaultSource({"url": "nats://none:4222", "flightLog": "log", "onError": "deadletter",
                        "deadLetterTable": "letters", "flightLogColumns": "number", "pack": %r})
pickle.loads(pickle.dumps(source.writer(schema, False)))
pickle.loads(pickle.dumps(source.streamWriter(schema, False)))
"""
SUBSCRIBE = """
from pyspark_mamasub import DefaultSource
source = DefaultSource({"url": "nats://none:4222", "stream": "ORDERS"})
pickle.loads(pickle.dumps(source.reader(source.schema())))
pickle.loads(pickle.dumps(source.streamReader(source.schema())))
"""
DISCOVERY = """
from pyspark_mamadiscovery import DefaultSource
from mama_spark.spark.discovery.rows import SCHEMA
source = DefaultSource({"url": "nats://none:4222"})
source.schema()
pickle.loads(pickle.dumps(source.reader(from_arrow_schema(SCHEMA))))
pickle.loads(pickle.dumps(source.streamReader(from_arrow_schema(SCHEMA))))
"""


def loaded(program: str, folder: Path) -> list[str]:
    """Modules that a new process, started in ``folder``, loads for this program."""
    command = [sys.executable, "-c", BEFORE + program + AFTER]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "program",
    [FOUND, WRITER % "off", WRITER % "arrow", SUBSCRIBE, DISCOVERY],
    ids=["found", "mamapub", "mamapub, packed", "mamasub", "mamadiscovery"],
)
def test_a_format_that_is_found_made_or_unpickled_loads_no_heavy_module(program: str, tmp_path: Path) -> None:
    modules = loaded(program, tmp_path)
    assert "mama_spark" in modules
    assert [name for name in modules if any(name == heavy or name.startswith(f"{heavy}.") for heavy in HEAVY)] == []
