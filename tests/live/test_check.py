"""``mama check`` against a real server: one clear line for what is wrong, exit code 2, and nothing made anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mama_spark.cli.main import main
from mama_spark.flightlog import table_check
from mama_spark.flightlog.table_check import file_system
from mama_spark.nats import NatsSettings
from mama_spark.nats.preflight import check_server
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(nats_server: NatsServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code and output of ``mama check`` with some arguments."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["check", *(() if "--url" in arguments else ("--url", nats_server.url)), *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_all_is_fine_and_nothing_is_made(nats_server: NatsServer, tmp_path: Path, run: Run) -> None:
    conf = tmp_path / "job.toml"
    tables = {"flightLog": f"{tmp_path}/deep/log", "deadLetterTable": f"{tmp_path}/deep/dead"}
    given = {"topic": "s.a", "flightLogColumns": "order_id", "onError": "deadletter", **tables}
    conf.write_text("\n".join(["[mamapub]", *(f'{name} = "{value}"' for name, value in given.items())]))
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"])
        code, said = run("--conf-file", str(conf))
        assert code == 0, said
        assert "flightLogColumns order_id: that they exist, and their types, the write checks" in said
        assert not (tmp_path / "deep").exists()
        assert admin.messages("S") == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("flightLog={}/log", "flightLogColumns=topic"), "topic"),
        (("flightLog={}/log", "flightLogColumns=committed"), "committed"),
        (("flightLog={}/file/log",), "is a file, not a folder"),
        (("deadLetterTable={}/file/log", "onError=deadletter"), "is a file, not a folder"),
        (("flightLog={}",), "is no Delta table, and its folder holds other files (file)"),
    ],
)
def test_what_cannot_be_a_table_is_told(tmp_path: Path, run: Run, options: tuple[str, ...], told: str) -> None:
    (tmp_path / "file").write_text("")
    code, said = run(*(part for option in options for part in ("-o", option.format(tmp_path))))
    assert (code, said.count("BAD")) == (2, 1)
    assert told in said


# --- the places of the tables ----------------------------------------------------------------------------------------


@pytest.fixture(params=["overlay", "fuse.s3fs"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file system that every path is on: which ones there are differs between machines."""
    found: str = request.param
    monkeypatch.setattr(table_check, "file_system", lambda path: found)
    return found


def test_relative_path_is_shown_as_the_place_that_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run("-o", "flightLog=data/log")
    assert code == 0
    assert f"flight log: {tmp_path}/data/log: no table yet" in text
    assert list(tmp_path.iterdir()) == []


def test_disk_of_one_machine_is_refused_for_a_cluster(tmp_path: Path, run: Run, kind: str) -> None:
    tables = ["-o", f"flightLog={tmp_path}/log", "-o", f"deadLetterTable={tmp_path}/dead", "-o", "onError=deadletter"]
    own_disk = kind in ("ext4", "overlay")
    code, text = run(*tables, "--master", "spark://cluster:7077")
    assert (code, text.count("BAD ")) == ((2, 2) if own_disk else (0, 0))
    if own_disk:
        for option in ("flightLog", "deadLetterTable"):
            assert f"{option} {tmp_path}/" in text
        assert "which executors of spark://cluster:7077 do not see: use a folder that" in text
    code, text = run(*tables)
    assert code == 0
    assert text.count("for a job on a cluster, use a folder that") == (2 if own_disk else 0)
    code, text = run(*tables, "--master", "local[4]")
    assert code == 0
    assert "use a folder" not in text


@pytest.mark.parametrize("between", ["   ", "\t", "=", " = ", ":"])
def test_master_of_spark_defaults_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, between: str
) -> None:
    monkeypatch.setattr(table_check, "file_system", lambda path: "ext4")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    (tmp_path / "conf").mkdir()
    lines = f"# a comment\nspark.master{between}yarn\nspark.master.rest 1\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(lines)
    code, text = run("-o", f"flightLog={tmp_path}/log")
    assert (code, "executors of yarn do not see" in text) == (2, True)
    assert run("-o", f"flightLog={tmp_path}/log", "--master", "local[2]")[0] == 0


def test_this_machine_tells_its_file_systems() -> None:
    assert file_system("/proc") in ("proc", None)


# --- the permissions of docs/reference/permissions.md -------------------------------------------------------------

NEEDED = ("s.>", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*")


def test_the_documented_permissions_are_enough(tmp_path: Path, run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "permissions.md").read_text()
    for name in (*NEEDED[1:], "_INBOX.>"):
        assert f"`{name}`" in page
    rules = f'{{publish: {json.dumps(NEEDED)}, subscribe: ["_INBOX.>"]}}'
    users = f"{{user: spark, password: p, permissions: {rules}}}, {{user: admin, password: p}}"
    with NatsServer(tmp_path / "n", config=f"authorization {{ users = [ {users} ] }}") as server:
        with Admin(server.url, user="admin", password="p") as admin:
            admin.create_stream("S", ["s.>"])
        login = ("--url", server.url, "-o", "user=spark", "-o", "password=p", "-o", "topic=s.a")
        code, said = run(*login)
        assert code == 0, said
        assert "stream: " in said
        assert "warning" not in said


def test_looking_makes_no_stream_even_where_the_write_would(nats_server: NatsServer) -> None:
    settings = NatsSettings(servers=(nats_server.url,), stream="LATER", create_stream=True)
    found = check_server(settings, ["later.x"])
    assert all(fine for fine, _ in found), found
    assert any("createStream=true" in text for _, text in found)
    assert not check_server(NatsSettings((nats_server.url,), stream="NOPE"))[-1][0]
    with Admin(nats_server.url) as admin:
        assert not admin.api("STREAM.NAMES").get("streams")
