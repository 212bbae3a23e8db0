"""The command ``mama``: in this process, and as one of its own where that is the point."""

from __future__ import annotations

import argparse
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from mama_spark import __version__
from mama_spark.cli import main as cli
from mama_spark.cli.commands.events import line_of
from mama_spark.contracts.errors import Unavailable
from mama_spark.mama.discovery.discovery_rows import DiscoveryRow
from mama_spark.nats.commands.serve import DEMO, add_demo_stream
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.ports import lasting_port


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def mama(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command in this process."""

    def run(*words: str) -> Done:
        code: int | str | None
        try:
            code = cli.main(list(words))
        except SystemExit as end:
            code = end.code
        assert code is None or isinstance(code, int)
        return Done(code or 0, *capsys.readouterr())

    return run


def test_help_and_version_import_no_library() -> None:
    program = (
        "import sys; from mama_spark.cli import main as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pyarrow', 'numpy', 'deltalake', 'nats', 'pyspark'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("serve", "check", "flights", "docs"))


def test_a_broker_starts_without_what_only_some_brokers_need() -> None:
    """Until it is ready, the messages of plain producers are lost."""
    program = (
        "import sys, threading; before = set(sys.modules)  # where coverage is measured, much of it\n"
        "from mama_spark.malamute.commands.broker import serve\n"
        "stop = threading.Event(); stop.set()\n"
        "serve('tcp://127.0.0.1:*', stop=stop)\n"
        "slow = {'asyncio', 'email', 'http', 'importlib.metadata', 'nats', 'numpy', 'prometheus_client',\n"
        "        'pyarrow', 'sqlite3', 'ssl'} & (set(sys.modules) - before)\n"
        "sys.exit(f'imported: {slow}' if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready: ")


def test_the_module_runs_as_a_program_with_the_exit_code_of_the_command() -> None:
    command = [sys.executable, "-m", "mama_spark.cli"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, f"mama-spark {__version__}")
    done = subprocess.run([*command, "flights", "no/such/log"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("mama: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("flights", "one", "two"),
        ("flights", "sweep", "no/such/log"),
        ("check", "--conf-file", "no-such-file.toml"),
        ("docs", "options", "--check", "no-such-file.md"),
        ("flights", "no/such/\udcff"),
        ("serve", "--port", "65536"),
        ("broker", "--bind", "tcp://127.0.0.1:65536"),
    ],
)
def test_an_error_of_ours_is_one_line_and_exit_code_2(mama: Callable[..., Done], words: tuple[str, ...]) -> None:
    done = mama(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("mama: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("unknown",), ("flights",), ("flights", "sweep", "x", "--older-than", "soon")])
def test_wrong_usage_is_exit_code_2(mama: Callable[..., Done], words: tuple[str, ...]) -> None:
    done = mama(*words)
    assert done.returncode == 2
    assert "usage: mama" in done.stderr


@pytest.mark.parametrize("words", [(), ("-o", "url=nats://127.0.0.1:1"), ("--conf-file", "job.toml")])
def test_check_says_that_nobody_answers_where_a_url_counts(
    mama: Callable[..., Done], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, at the one that counts everywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text('[mamapub]\nurl = "nats://127.0.0.1:1"\n')
    done = mama("check", *words, "-o", "connectTimeout=300ms")
    assert "nats://127.0.0.1:" in done.stdout
    assert "Traceback" not in done.stderr
    if words:
        assert (done.returncode, "BAD" in done.stdout) == (2, True)


def test_docs_options_writes_and_recognises_a_stale_file(mama: Callable[..., Done], tmp_path: Path) -> None:
    page = tmp_path / "options.md"
    assert mama("docs", "options", "--write", str(page)).returncode == 0
    assert mama("docs", "options", "--check", str(page)).returncode == 0
    assert mama("docs", "options").stdout == page.read_text()
    page.write_text(page.read_text() + "\n")
    assert mama("docs", "options", "--check", str(page)).returncode == 2


@pytest.mark.parametrize(
    ("library", "words", "extra"),
    [("zmq", ["broker"], "malamute"), ("rich", ["top", "nats://h:1"], "top"), ("jinja2", ["report", "x"], "report")],
)
def test_a_command_without_its_libraries_says_what_to_install(library: str, words: list[str], extra: str) -> None:
    program = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from mama_spark.cli import main as cli; sys.exit(cli.main(sys.argv[2:]))"
    )
    command = [sys.executable, "-c", program, library, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"pip install 'mama-spark[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_events_shows_the_numbers_of_counts() -> None:
    numbers = {"EventTaken": "1000", "EventAcknowledged": "990", "EventFailed": "0", "EventInFlight": "10"}
    row = DiscoveryRow("publisher", "counts", "desk", 7, capabilities={"EventPublisher": "p", **numbers})
    assert line_of(row).endswith("publisher  counts  (desk 7)  1000 taken, 990 acked, 0 failed, 10 in flight")


STOPPED_BY_SIGNALS = {
    "serve": ["--port", "0"],
    "broker": ["--bind", "tcp://127.0.0.1:*"],
    "nsd": ["--port", "0"],
    "tango-source": ["LOG", "--bind", "127.0.0.1:0", "--position", "FOLDER/position"],
    "mama-source": ["--url", "LOG", "--to", "TO", "--source", "OM", "--state", "FOLDER/state"],
    "record": ["TO", "--topic", "OM.X", "--to", "SERVER/RECORDS", "-o", "createStream=true"],
}


@pytest.fixture(scope="module")
def log() -> Iterator[str]:
    with NatsServer(None) as server:
        add_demo_stream(server.url)
        yield f"{server.url}/{DEMO}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.parametrize("command", STOPPED_BY_SIGNALS)
def test_commands_that_run_until_a_signal_end_with_what_the_help_says(
    command: str, number: int, code: int, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, after what they say when they are ready."""
    module = import_module(cli.SUBCOMMANDS[command].module)
    monkeypatch.setattr(module, "say_as", lambda as_json: lambda text: signal.raise_signal(number))
    to = f"oz://127.0.0.1:{lasting_port()}?mode=direct&incoming=tcp://127.0.0.1:{lasting_port()}"
    given = {"LOG": log, "SERVER": log.removesuffix(f"/{DEMO}"), "TO": to, "FOLDER": str(tmp_path)}
    words = [re.sub("LOG|SERVER|TO|FOLDER", lambda name: given[name[0]], w) for w in STOPPED_BY_SIGNALS[command]]
    assert cli.main([command, *words]) == code


def test_the_table_of_signals_has_all_commands_that_stop_on_them() -> None:
    modules = {name: import_module(subcommand.module) for name, subcommand in cli.SUBCOMMANDS.items()}
    assert {name for name, module in modules.items() if hasattr(module, "stop_on_signals")} == set(STOPPED_BY_SIGNALS)


@pytest.mark.parametrize("command", cli.SUBCOMMANDS)
def test_every_command_ends_by_ctrl_c_and_on_a_mistake_with_what_the_help_says(
    command: str, mama: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mama(command, "--no-such-argument").returncode == 2

    def raises(error: BaseException) -> Callable[..., int]:
        def run(args: argparse.Namespace) -> int:
            raise error

        return run

    for error, code in ((KeyboardInterrupt(), 130), (Unavailable("no server"), 2)):
        monkeypatch.setattr(cli, "parse", lambda words, error=error: argparse.Namespace(run=raises(error)))
        assert mama(command).returncode == code


@pytest.mark.parametrize("command", ["serve", "nsd"])
def test_a_server_whose_port_is_in_use_says_so(command: str, mama: Callable[..., Done]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = mama(command, "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith("mama: ")
    if command == "serve":
        assert done.stderr == f"mama: port {port} is in use; choose another with --port\n"
