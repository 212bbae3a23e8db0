"""What Spark's planner and its workers load when they find, make and unpickle a format: nothing that only publishing,
reading or committing needs. Each of these processes is new, and pays for every module."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

#: Libraries and parts of this package that must not be loaded.
HEAVY = (
    "IPython", "altair", "argcomplete", "asyncio", "deltalake", "hypothesis", "nacl", "nats", "pandas", "psutil",
    "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "importlib.metadata", "opentelemetry", "prometheus_client",
    "pytest", "rich", "ssl", "textual", "xxhash", "zmq", "mama_spark.nats", "mama_spark.openmama", "mama_spark.console",
    "mama_spark.flightlog.commit", "mama_spark.flightlog.storage", "mama_spark.cli.top", "mama_spark.malamute",
    "mama_spark.packing.unpacker", "mama_spark.publishing", "mama_spark.report",
    "mama_spark.spark.sink.partition_writer", "mama_spark.spark.sink.outcome_recorder",
    "mama_spark.spark.subscribe.packed_rows", "mama_spark.tango", "mama_spark.testing",
)  # fmt: skip
_WINDOW = "mama_spark.publishing.window"
#: A small part of these: how readers retry.
LIGHT = {"mama_spark.publishing", _WINDOW, f"{_WINDOW}.outage_timer", f"{_WINDOW}.reconnecting"}
#: pyspark and pyarrow are there already; what they load is not counted.
BEFORE = """
import json, os, pickle, sys
import pyarrow, pyspark.sql.datasource, pyspark.sql.types as T
from pyspark.sql.pandas.types import from_arrow_schema
before = set(sys.modules)
"""
EACH = """
for name, program in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        exec(program, globals())
        print(json.dumps([name, sorted(set(sys.modules) - before)]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
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
from mama_spark.spark.discovery.row_batches import SCHEMA
source = DefaultSource({"url": "nats://none:4222"})
source.schema()
pickle.loads(pickle.dumps(source.reader(from_arrow_schema(SCHEMA))))
pickle.loads(pickle.dumps(source.streamReader(from_arrow_schema(SCHEMA))))
"""
#: What connects, plans and reads or publishes, by task or planner: module -> libraries of HEAVY that it may load.
#: Whatever makes an Arrow value of a Python value at import loads pandas, too.
STEPS = {
    "mama_spark.nats.read.logs": {"asyncio", "importlib.metadata", "nats", "ssl", "pyarrow.compute"},
    "mama_spark.nats.discovery.bridge": {"asyncio", "importlib.metadata", "nats", "ssl", "pyarrow.compute"},
    "mama_spark.nats.publish.bridge": {"asyncio", "importlib.metadata", "nats", "ssl", "pyarrow.compute"},
    "mama_spark.malamute.bridge": {"asyncio", "ssl", "zmq", "pyarrow.compute"},
    "mama_spark.tango.bridge": {"pyarrow.compute"},
    "mama_spark.spark.discovery.data_source": {"pyarrow.compute"},
    "mama_spark.spark.subscribe.packed_rows": {"pyarrow.compute"},
    "mama_spark.tango.rows.tango_rows": {"pyarrow.compute"},
    "mama_spark.openmama.rows.openmama_rows": {"pyarrow.compute"},
    "mama_spark.spark.sink.partition_writer": {"pyarrow.compute", "xxhash"},
    "mama_spark.flightlog.staging": {"deltalake", "pyarrow.compute", "pyarrow.parquet", "ssl"},
}
LIBRARIES = [name for name in HEAVY if not name.startswith("mama_spark.")]


PROGRAMS = {
    "found": FOUND, "mamapub": WRITER % "off", "mamapub, packed": WRITER % "arrow", "mamasub": SUBSCRIBE,
    "mamadiscovery": DISCOVERY,
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Modules that a new process loads for each program and step: forks of one that has loaded what Spark's has."""
    programs = PROGRAMS | {module: f"import {module}\n" for module in STEPS}
    command = [sys.executable, "-c", BEFORE + EACH, json.dumps(programs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path_factory.mktemp("folder"))
    found: dict[str, list[str]] = dict(map(json.loads, done.stdout.splitlines()))
    assert found.keys() == programs.keys(), done.stderr
    return found


def among(modules: list[str], heavy: Iterable[str]) -> list[str]:
    return [name for name in modules if any(name == one or name.startswith(f"{one}.") for one in heavy)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_format_that_is_found_made_or_unpickled_loads_no_heavy_module(
    program: str, loaded: dict[str, list[str]]
) -> None:
    assert "mama_spark" in loaded[program]
    assert set(among(loaded[program], HEAVY)) <= LIGHT


@pytest.mark.parametrize("module", STEPS)
def test_a_step_of_a_task_or_planner_loads_no_library_that_it_does_not_need(
    module: str, loaded: dict[str, list[str]]
) -> None:
    assert module in loaded[module]
    assert among(loaded[module], [name for name in LIBRARIES if name not in STEPS[module]]) == []
