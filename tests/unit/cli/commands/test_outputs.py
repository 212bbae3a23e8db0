"""No command ends with a trace because of where its output goes."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import pytest
from mama_spark.cli import main as cli

TEXT = "ä € 😀 \udc80"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_written_as_in_json(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding))

    def run(_: argparse.Namespace) -> int:
        print(json.dumps(TEXT, ensure_ascii=False))
        return 0

    monkeypatch.setattr(cli, "parse", lambda _: argparse.Namespace(run=run))
    assert cli.main(["jobs"]) == 0
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert isinstance(sys.stdout.buffer, io.BytesIO)
    assert json.loads(sys.stdout.buffer.getvalue().decode(encoding)) == TEXT


@pytest.mark.parametrize(("words", "code"), [(["jobs"], 0), (["jobs", "--path", "none"], 2), ([], 2)])
def test_outputs_may_be_closed(words: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert cli.main(words) == code
    for name in ("stdout", "stderr"):
        getattr(sys, name).close()


@pytest.mark.parametrize("columns", ["0", "12", "1000"])
def test_a_terminal_may_be_of_any_breadth(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for words in (["--help"], ["pub", "--help"]):
        with pytest.raises(SystemExit):
            cli.main(words)
    assert "exit codes" in " ".join(capsys.readouterr().out.split())


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is of Linux")
@pytest.mark.parametrize("error_full", [False, True])
@pytest.mark.parametrize("words", [["docs", "options"], ["--help"], ["jobs", "--path", "none"]])
def test_outputs_may_be_full(
    words: list[str], error_full: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FULL.open("w") as out, FULL.open("w") as errors:
        monkeypatch.setattr(sys, "stdout", out)
        if error_full:
            monkeypatch.setattr(sys, "stderr", errors)
        assert cli.main(words) == 2
        errors.close()  # nothing is left in it that could fail at the end
    said = capsys.readouterr().err
    assert said == "" if error_full else (said.startswith("mama: ") and said.count("\n") == 1)
