"""The commands and statements that the how-to guides show for the flight log run as written, on a log of three jobs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from deltalake import DeltaTable
from mama_spark.cli.main import main
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import SparkSession

from tests.support.flight_logs import rows
from tests.support.nats.nats_servers import Admin

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "how-to"
PAGE = (GUIDES / "maintain-the-flight-log.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(
    (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    for name in ("maintain-the-flight-log", "restart-after-a-failure", "query-the-flight-log", "install-on-a-cluster")
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Whole ``mama ...`` commands, wherever the pages mention them; each once."""
    whole = re.compile(r"mama (check --conf-file|flights .*PATH)")
    found = re.findall(r"`(mama [^`]+)`", COMMANDS) + re.findall(r"(?m)^    (mama .*)$", COMMANDS)
    return sorted({text for text in found if whole.match(text)})


def test_nothing_on_the_page_is_left_out() -> None:
    assert set(re.findall(r"^```(\S+)$", PAGE, re.MULTILINE)) == {"sql"}
    assert {shlex.split(c)[1] for c in commands()} == {"check", "flights"}


@pytest.fixture(scope="module")
def written(spark: SparkSession, nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flight log of three jobs, the last of which left failed rows."""
    log = tmp_path_factory.mktemp("page") / "flights"
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"], max_msg_size=100)
    for sizes in ("10", "10", "if(id < 3, 500, 10)"):
        frame = spark.range(20).selectExpr("concat('orders.', id) AS topic", f"repeat('x', {sizes}) AS value")
        writer = frame.write.format("mamapub").option("url", nats_server.url).option("flightLog", str(log))
        writer.option("onError", "log").mode("append").save()
    return log


def flights(log: Path) -> list[dict[str, object]]:
    """How each row ended, in committed attempts: other events and earlier tries of a task are in the log, too."""
    rows: list[dict[str, object]] = DeltaTable(str(log)).to_pyarrow_table().to_pylist()
    return [row for row in rows if row["committed"] and row["event"] in ("acked", "completed_exceptionally", "timeout")]


@pytest.mark.thorough
def test_the_maintenance_in_sql_runs_as_it_stands(spark: SparkSession, written: Path) -> None:
    statements = [s.strip() for block in blocks("sql") for s in block.split(";") if s.strip()]
    assert [s.split()[0] for s in statements] == ["ALTER", "DELETE", "OPTIMIZE", "VACUUM"]
    files, before = len(DeltaTable(str(written)).file_uris()), rows(written)
    for statement in statements:
        assert "/path/flights" in statement
        spark.sql(statement.replace("/path/flights", str(written)))
    done = [entry["operation"] for entry in DeltaTable(str(written)).history()]
    assert {"OPTIMIZE", "VACUUM START", "VACUUM END"} <= set(done)
    assert len(DeltaTable(str(written)).file_uris()) < files
    assert rows(written) == before
    assert len(flights(written)) == 60


@pytest.mark.parametrize("command", commands())
def test_the_commands_run_as_they_stand(
    command: str,
    written: Path,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "conf").mkdir()
    conf = (ROOT / "conf" / "publish.toml").read_text().replace("nats://127.0.0.1:4222", nats_server.url)
    (tmp_path / "conf" / "publish.toml").write_text(conf)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command.replace("PATH", str(written)))[1:]) == 0
    said = capsys.readouterr().out
    if "--failed" in command:
        assert "10054" in said
    elif "maintain" in command:
        assert "into 1" in said or "0 files were merged" in said
        assert len(flights(written)) == 60
    elif "sweep" in command:
        assert "no" in said.lower()
        assert len(flights(written)) == 60
    else:
        assert "BAD" not in said


def test_the_rows_that_failed_are_in_the_log_with_their_payload(written: Path) -> None:
    payloads = [row["payload"] for row in flights(written) if row["event"] != "acked"]
    assert payloads == [b"x" * 500] * 3
