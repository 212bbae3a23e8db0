"""Secrets in options of writes, reads and streams of Spark: nothing that Spark or we keep or print shows one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from mama_spark.nats.server.nats_server import NatsServer

from tests.spark.conftest import CONF
from tests.support.canaries import CREDENTIALS, ENCODED, SEED, STORAGE, WORDS, shown_below, shown_in
from tests.support.nats.nats_servers import Admin

USER, PASSWORD, RAW = WORDS["user"], WORDS["password"], WORDS["url"]
PATIENCE = 600.0
OURS = ("spark.driver.", "spark.sql.shuffle.", "spark.sql.codegen.", "spark.python.unix.", "spark.ui.show")


@pytest.mark.thorough
def test_spark_shows_no_secret_anywhere(tmp_path: Path) -> None:
    logins = f'{{user: "{USER}", password: "{PASSWORD}"}}, {{user: u, password: "{RAW}"}}'
    kept = tmp_path / "kept"
    (kept / "events").mkdir(parents=True)
    with NatsServer(tmp_path / "server", config=f"authorization {{ users = [ {logins} ] }}") as server:
        with Admin(server.url, user="u", password=RAW) as admin:
            admin.create_stream("S", ["s.>"])
        steps = tmp_path / "steps.json"
        steps.write_text(json.dumps(the_steps(server, kept)))
        told = run(kept, steps, {"url": server.url, "user": "u", "password": RAW})
    assert "which is wrong" not in told, told[-5000:]
    assert told.count("STEP ") == len(the_steps(server, kept))
    assert shown_in(told) == []
    assert {"events", "flight_log", "dead_letters", "page-0"} <= set(os.listdir(kept))
    assert DeltaTable(str(kept / "flight_log")).version() > 1
    assert (tmp_path / "server" / "store").is_dir()
    assert shown_below([kept]) == []
    stored = shown_below([tmp_path / "server" / "store"])
    assert [one for one in stored if not one.endswith(": user")] == []  # the server names users in its own advisories


def the_steps(server: NatsServer, folder: Path) -> list[tuple[str, str, dict[str, str], bool]]:
    """Name, what to do, options, and whether it works."""
    tables = {"flightLog": str(folder / "flight_log"), "deadLetterTable": str(folder / "dead_letters")}
    letters = {**tables, "onError": "deadletter", "announce": "true", **STORAGE}
    by_url = f"nats://u:{ENCODED}@127.0.0.1:{server.port}"
    login = {"url": server.url, "user": USER, "password": PASSWORD}
    return [
        ("write, login in the url", "write", {"url": by_url, **letters}, True),
        ("write, login in options", "write", {**login, **letters}, True),
        ("read", "read", {**login, "topics": "s.>"}, True),
        ("stream", "stream", {"servers": by_url}, True),
        ("write, login of the session", "write", letters, True),
        ("read, login of the session", "read", {"topics": "s.>"}, True),
        ("stream, login of the session", "stream", {"connectTimeout": "9s"}, True),
        ("wrong password", "write", {**login, "user": "u", **tables, "onError": "deadletter"}, False),
        ("wrong password of a read", "read", {**login, "user": "u", "topics": "s.>"}, False),
        ("no TLS there", "write", {"url": by_url.replace("nats:", "tls:")}, False),
        ("a slash in the password", "write", {"url": f"nats://u:{RAW}@127.0.0.1:{server.port}"}, False),
        ("credentials for their path", "write", {"url": server.url, "credentials": CREDENTIALS}, False),
        ("a seed for its path", "read", {"url": server.url, "nkeySeed": SEED, "topics": "s.>"}, False),
        ("a bad row", "write", {**login, "flightLog": str(folder / "flight_log"), **STORAGE}, False),
    ]


def run(folder: Path, steps: Path, defaults: dict[str, str]) -> str:
    """``spark-submit``; what it printed. ``defaults``: of the session."""
    conf = {name: value for name, value in CONF.items() if name.startswith(OURS)} | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        **{f"spark.mama.{name}": value for name, value in defaults.items()},
    }
    programs = Path(sys.executable).parent
    command = [str(programs / "spark-submit"), "--master", "local[2,2]"]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    script = Path(__file__).parent / "driver_scripts" / "canary.py"
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    output = steps.with_suffix(".out")
    with output.open("w") as out:
        process = subprocess.Popen(
            [*command, str(script), str(folder), str(steps)], env=env, cwd=folder, stdout=out, stderr=out
        )
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
    assert code == 0, output.read_text()[-5000:]
    return output.read_text()
