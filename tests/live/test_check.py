"""``mama check`` against a real server: one clear line for what is wrong, exit code 2, and nothing made anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.bridges.nats import NatsBridge, NatsSettings
from mama_spark.bridges.nats.check import check_server
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.cli import main
from mama_spark.options import SinkOptions

from tests.support.nats.nats_servers import Admin


def check(folder: Path, capsys: pytest.CaptureFixture[str], *conf_lines: str) -> tuple[int, str]:
    conf = folder / "job.toml"
    conf.write_text("\n".join(["[mamapub]", *conf_lines]))
    capsys.readouterr()
    code = main(["check", "--conf-file", str(conf)])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_options_reach_the_transport_by_one_mapping(tmp_path: Path) -> None:
    given = {"url": "nats://h:1", "user": "u", "password": "p", "stream": "S", "order": "partition", "dedup": "false"}
    settings = NatsSettings.from_options(SinkOptions.parse(given))
    assert (settings.servers, settings.user, settings.password) == (("nats://h:1",), "u", "p")
    assert (settings.stream, settings.ordered, settings.dedup) == ("S", True, False)
    assert NatsSettings.from_options(SinkOptions.parse({})) == NatsSettings()


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


def server_with(folder: Path, publish: tuple[str, ...], subscribe: tuple[str, ...]) -> NatsServer:
    def words(names: tuple[str, ...]) -> str:
        return "[" + ", ".join(f'"{n}"' for n in names) + "]"

    rules = f"{{publish: {words(publish)}, subscribe: {words(subscribe)}}}"
    users = f"{{user: spark, password: p, permissions: {rules}}}, {{user: admin, password: p}}"
    return NatsServer(folder, config=f"authorization {{ users = [ {users} ] }}")


def test_the_documented_permissions_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "secure-the-connection.md").read_text()
    for name in (*NEEDED[1:], "_INBOX.>"):
        assert f"`{name}`" in page
    with server_with(tmp_path / "n", NEEDED, ("_INBOX.>",)) as server:
        with Admin(server.url, user="admin", password="p") as admin:
            admin.create_stream("S", ["s.>"])
        login = (f'url = "{server.url}"', 'user = "spark"', 'password = "p"', 'topic = "s.a"')
        code, said = check(tmp_path, capsys, *login)
        assert code == 0, said
        assert "stream: " in said
        assert "warning" not in said


def test_without_the_inbox_the_connection_is_refused(tmp_path: Path) -> None:
    with server_with(tmp_path / "n", NEEDED, ("other",)) as server:
        bridge = NatsBridge(NatsSettings((server.url,), user="spark", password="p"))
        with pytest.raises(Exception, match="inbox"):
            bridge.open()
        bridge.close()


def test_looking_makes_no_stream_even_where_the_write_would(nats_server: NatsServer) -> None:
    settings = NatsSettings(servers=(nats_server.url,), stream="LATER", create_stream=True)
    found = check_server(settings, ["later.x"])
    assert all(fine for fine, _ in found), found
    assert any("createStream=true" in text for _, text in found)
    with Admin(nats_server.url) as admin:
        assert not admin.api("STREAM.NAMES").get("streams")
