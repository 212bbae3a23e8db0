"""What commands show: in a terminal, in a pipe, without colors; completion, help and progress."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from uuid import uuid4

import pytest
from mama_spark.cli import main as cli
from mama_spark.console import discovery_follow as follow
from mama_spark.console import progress as progress_module
from mama_spark.console.output import print_tables
from mama_spark.console.progress import Progress
from mama_spark.contracts.bridge import SourceKey
from mama_spark.flightlog.commit import commit
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import SourceRecord, encode_source
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources
from mama_spark.options import ANY_USE
from mama_spark.testing.waiting import eventually

from tests.support.flight_logs import BATCH, flights, stage
from tests.support.tables import each

# --- what commands show: in a terminal, in a pipe, without colors; completion, help and progress ----------------------

MAMA = (sys.executable, "-m", "mama_spark.cli")
ESCAPE = "\x1b["


def on_terminal(*words: str, **environment: str) -> str:
    """What the command writes on a terminal."""
    master, slave = pty.openpty()
    kept = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [*MAMA, *words], stdout=slave, stderr=slave, stdin=slave, env={**kept, "TERM": "xterm-256color", **environment}
    ) as process:
        os.close(slave)
        found = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not part:
                break
            found += part
        process.wait(60)
    os.close(master)
    return found.decode()


@pytest.fixture
def log(tmp_path: Path) -> str:
    commit(str(tmp_path / "log"), {}, BATCH, stage(tmp_path / "log", BATCH, flights(5, failed=2)))
    return str(tmp_path / "log")


def test_tables_have_colors_in_a_terminal_only(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = on_terminal("flights", log)
    assert ESCAPE in shown
    assert "──" in shown
    assert cli.main(["flights", log]) == 0
    plain = capsys.readouterr().out
    assert ESCAPE not in plain
    assert "──" not in plain
    assert re.search(r"^  event +status +committed +flights +rows$", plain, re.MULTILINE)
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.setenv(name, "1")
    assert cli.main(["flights", log]) == 0
    shown = capsys.readouterr().out
    assert "──" in shown
    assert not re.search(r"\x1b\[[\d;]*3\d", shown), "no color"


def test_an_error_is_marked_in_a_terminal() -> None:
    shown = on_terminal("flights", "no/such/log")
    assert ESCAPE in shown
    assert "no/such/log: no flight log there" in shown


def test_text_of_rows_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_tables("", [("", ("topic",), [["\x1b]0;title\x07[red]x"]])])
    shown = capsys.readouterr().out
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "[red]x" in shown


def test_without_rich_everything_is_plain(log: str) -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('rich', 'rich_argparse', 'argcomplete')))\n"
        "from mama_spark.cli import main as cli\n"
        "assert cli.main(sys.argv[1:]) == 0; assert cli.main(['completion', 'bash']) == 2\n"
        "cli.main(['flights', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", program, "flights", log], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "usage: mama flights" in done.stdout
    assert "pip install 'mama-spark[cli]'" in done.stderr


@each("name", cli.SUBCOMMANDS)
def test_examples_of_the_help_are_command_lines(name: str) -> None:
    for line in cli.SUBCOMMANDS[name].examples:
        command = re.sub(r'^eval "\$\((.*)\)"$|[|<].*$', r"\1", line)
        assert cli.parse(shlex.split(command)[1:]).run
        assert line in cli.parser([name])._subparsers._group_actions[0].choices[name].format_help()  # type: ignore


def test_every_subcommand_is_in_a_group_of_the_help() -> None:
    shown = cli.parser([]).format_help()
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in cli.SUBCOMMANDS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("mama fli", {"flights"}), ("mama flights --fa", {"--failed"}), ("mama events --from ", {"latest", "earliest"})],
)
def test_the_shell_completes(line: str, expected: set[str], tmp_path: Path) -> None:
    """As the shell function of ``mama completion bash`` asks."""
    answer = tmp_path / "answer"
    environment = {
        **os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }  # fmt: skip
    subprocess.run(MAMA, env=environment, timeout=120, check=False)
    assert expected <= {word.strip() for word in answer.read_text().split("\n")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_program_of_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "_ARGCOMPLETE" in text
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=text, text=True, timeout=60).returncode == 0


def test_json_is_one_line_each(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(tmp_path / "report.html")
    assert cli.main(["report", log, "-o", page, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["failed"], told["page"]) == ("failed", 2, page)
    assert cli.main(["flights", "sweep", log, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == 0
    assert cli.main(["jobs", "--json"]) == 0
    assert "publish" in {json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()}
    assert cli.main(["docs", "options", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"mamapub", "mamasub", "mamadiscovery"} == {one["format"] for one in told if "format" in one}
    assert any(one.get("key") == "display_format" for one in told)
    assert cli.main(["completion", "bash", "--json"]) == 0
    assert "_ARGCOMPLETE" in json.loads(capsys.readouterr().out)["program"]


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All parsers that execute something."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for choice in action.choices.values():
            yield from commands(choice)
    if not below:
        yield parser


@each("command", list(commands(cli.parser())))
def test_every_command_says_what_it_does_with_an_example_and_takes_json(command: argparse.ArgumentParser) -> None:
    shown = command.format_help()
    assert re.fullmatch(r"[A-Z].*\.", " ".join((command.description or "").split()))
    assert f"examples:\n  {command.prog}" in shown.replace('eval "$(', "")
    assert "exit codes: 0 fine" in shown
    assert "--json" in shown
    assert all(action.help or action.choices for action in command._actions), "each argument says what it is"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "mama: name a COMMAND"),
        (["flghts"], "there is no 'flghts'; did you mean 'flights'?"),
        (["xyz"], "there is no 'xyz'; mama --help lists all"),
        (
            ["flights", "log", "--faild"],
            "mama flights: error: unrecognized arguments: --faild; did you mean '--failed'?",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_nearest_word(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = cli.main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert expected in capsys.readouterr().err


def test_progress_is_lines_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "QUIET", 0.0)
    monkeypatch.setattr(progress_module, "LINE_INTERVAL", 0.01)
    out = io.StringIO()
    with Progress("publishing", "messages", 100, out) as progress:
        progress.show(40, "waits for the server")
        eventually(lambda: "waits" in out.getvalue(), "a line")
    [line, *_] = [text for text in out.getvalue().splitlines() if "waits" in text]
    assert re.fullmatch(r"mama: publishing: 40 of 100 messages, [\d,]+/s, [\d,]+ s left, waits for the server", line)


def test_progress_is_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "QUIET", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with Progress("publishing", "messages", 100, out) as progress:
        progress.add(40)
        eventually(lambda: "40 of 100 messages" in out.getvalue(), "a bar")
    assert ESCAPE in out.getvalue()


# --- what ``mama sources`` and ``mama events`` follow -----------------------------------------------------------------


def test_a_long_past_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_AT_ONCE", 2)
    name = uuid4().hex
    source = MemoryDiscovery(name)
    source.open()
    for i in range(5):
        source.announce(SourceKey("s", i), encode(encode_source(SourceRecord("s", i, "ONLINE"))), 60.0)
    place = follow.DiscoveryFollower.of({"url": f"memory://{name}"}, ANY_USE)
    slept: list[float] = []
    parts = list(islice(place.changes(place.initial_offset("earliest"), slept.append), 4))
    assert [[row.source_id for row in rows] for rows in parts] == [[0, 1], [2, 3], [4], []]
    assert slept == [], "it goes on at once while there is more"
    place.close()
    source.close()
    MemorySources.forget(name)
