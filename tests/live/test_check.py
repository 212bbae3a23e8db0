"""``mama check`` against a real server: one clear line for what is wrong, exit code 2, and nothing made anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mama_spark.cli.main import main
from mama_spark.nats import NatsSettings
from mama_spark.nats.check import check_server
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin


def check(folder: Path, capsys: pytest.CaptureFixture[str], *conf_lines: str) -> tuple[int, str]:
    conf = folder / "job.toml"
    conf.write_text("\n".join(["[mamapub]", *conf_lines]))
    capsys.readouterr()
    code = main(["check", "--conf-file", str(conf)])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_all_is_fine_and_nothing_is_made(
    nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"])
        code, said = check(
            tmp_path, capsys, f'url = "{nats_server.url}"', 'topic = "s.a"', f'flightLog = "{tmp_path}/deep/log"',
            'flightLogColumns = "order_id"', f'deadLetterTable = "{tmp_path}/deep/dead"', 'onError = "deadletter"',
        )  # fmt: skip
        assert code == 0, said
        assert "flightLogColumns order_id: that they exist, and their types, the write checks" in said
        assert not (tmp_path / "deep").exists()
        assert admin.messages("S") == []


@pytest.mark.parametrize("name", ["topic", "committed"])
def test_log_column_with_a_name_of_the_log_is_told(
    nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    url, log = f'url = "{nats_server.url}"', f'flightLog = "{tmp_path}/log"'
    code, said = check(tmp_path, capsys, url, log, f'flightLogColumns = "{name}"')
    assert (code, said.count("BAD")) == (2, 1)
    assert name in said


@pytest.mark.parametrize("option", ["flightLog", "deadLetterTable"])
def test_a_file_in_the_place_of_a_table_is_told(
    nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    (tmp_path / "file").write_text("")
    url, path = f'url = "{nats_server.url}"', f'{option} = "{tmp_path}/file/log"'
    code, said = check(tmp_path, capsys, url, path, 'onError = "deadletter"', 'deadLetterTopic = "x"')
    assert code == 2
    assert "is a file, not a folder" in said


# --- the permissions of docs/how-to/secure-the-connection.md --------------------------------------------------------

NEEDED = ("s.>", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*")


def test_the_documented_permissions_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "secure-the-connection.md").read_text()
    for name in (*NEEDED[1:], "_INBOX.>"):
        assert f"`{name}`" in page
    rules = f'{{publish: {json.dumps(NEEDED)}, subscribe: ["_INBOX.>"]}}'
    users = f"{{user: spark, password: p, permissions: {rules}}}, {{user: admin, password: p}}"
    with NatsServer(tmp_path / "n", config=f"authorization {{ users = [ {users} ] }}") as server:
        with Admin(server.url, user="admin", password="p") as admin:
            admin.create_stream("S", ["s.>"])
        login = (f'url = "{server.url}"', 'user = "spark"', 'password = "p"', 'topic = "s.a"')
        code, said = check(tmp_path, capsys, *login)
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
