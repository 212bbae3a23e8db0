"""Fetch a Kafka broker and Spark's Kafka connector for ``make bench PEERS=kafka``: ``.venv/kafka.json`` says where the
jars are. They come from Maven Central through Spark's own resolver, as the Delta jars do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv" / "kafka.json"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"

KAFKA, LOG4J = "4.1.0", "2.25.1"
BROKER = (
    f"org.apache.kafka:kafka_2.13:{KAFKA}"
    f",org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J},org.apache.logging.log4j:log4j-core:{LOG4J}"
)
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}"
#: Only for delegation tokens, and not in every copy of Maven Central; ``bench/KafkaTokenStub.scala`` stands in for it.
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"


def resolve(packages: str, excludes: str = "") -> list[str] | None:
    """Paths of these artifacts and all they need; None = one was not found."""
    program = [sys.executable, __file__, "--resolve", packages, excludes]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return list(json.loads(done.stdout.splitlines()[-1]))
    if "not found" in done.stderr:
        return None
    raise SystemExit(f"{packages} could not be fetched from Maven Central:\n{done.stderr[-3000:]}")


def print_resolved(packages: str, excludes: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.packages", packages)
        .config("spark.jars.excludes", excludes)
        .getOrCreate()
    )
    jars = spark.sparkContext.getConf().get("spark.jars", "").split(",")
    spark.stop()
    print(json.dumps([jar.removeprefix("file://") for jar in jars]))


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def compile_stub() -> str:
    """The jar with the stand-in; Spark brings the compiler along."""
    jar = PLACE.with_name("kafka-token-stub.jar")
    source = ROOT / "bench" / "KafkaTokenStub.scala"
    with tempfile.TemporaryDirectory() as folder:
        everything = os.pathsep.join(map(str, SPARK_JARS.glob("*.jar")))
        compiler = [java(), "-cp", everything, "scala.tools.nsc.Main"]
        subprocess.run([*compiler, "-cp", everything, "-d", folder, str(source)], check=True)
        with zipfile.ZipFile(jar, "w") as archive:
            for file in sorted(Path(folder).rglob("*.class")):
                archive.write(file, file.relative_to(folder))
    return str(jar)


def wanted() -> dict[str, Any]:
    return {"broker": BROKER, "connector": CONNECTOR}


def complete() -> bool:
    """What the file names is there, and is what this program would fetch."""
    try:
        kept = json.loads(PLACE.read_text())
    except (OSError, ValueError):
        return False
    jars = kept.get("broker_jars", []) + kept.get("connector_jars", [])
    return bool(jars) and kept.get("wanted") == wanted() and all(Path(jar).is_file() for jar in jars)


def main() -> None:
    if complete():
        return
    print("fetching Kafka from Maven Central (about 60 MB, a minute)", flush=True)
    broker = resolve(BROKER)
    if broker is None:
        raise SystemExit(f"{BROKER} is not in Maven Central")
    connector, stub = resolve(CONNECTOR), False
    if connector is None:
        connector, stub = resolve(CONNECTOR, TOKENS), True
        if connector is None:
            raise SystemExit(f"{CONNECTOR} is not in Maven Central")
        connector.append(compile_stub())
    broker.append(str(next(SPARK_JARS.glob("scala-library-*.jar"))))
    found = {"wanted": wanted(), "broker_jars": broker, "connector_jars": connector, "token_stub": stub}
    PLACE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--resolve"]:
        print_resolved(*sys.argv[2:4])
    else:
        main()
