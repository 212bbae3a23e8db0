"""Write docs/reference/commands.md from the argument parser of the command ``mama``.

python scripts/command_reference.py --write    write the page
python scripts/command_reference.py --check    fail when the page is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from mama_spark.cli.main import parser
from mama_spark.console.exit_codes import MEANINGS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "commands.md"
HEAD = """# Commands

For users of the command `mama`: what each subcommand does.
`mama COMMAND --help` lists its arguments. Tables, bars and colors need a terminal and `pip install 'mama-spark[cli]'`.

| command | example |
|---|---|
"""
ARGUMENTS = """
In several commands:

| argument | meaning |
|---|---|
| `--json` | one object, or one for each message, event or line of text (`{"text": ...}`). `mama sources`, \
`mama events`: [columns](discovery.md#rows) that are not null. `mama top`, with `--once`: `totals`, and its tables |
| `--url URL`; also `URL`, not with `pub`, `sub`, `audit` | server or log ([default](configuration.md#where-nats-is)) |
| `-o NAME=VALUE` | an option of a format, or of the connection to the log |
| `PATH` | folder or URL of the flight log |
| `--storage NAME=VALUE` | storage option of delta-rs, for a table |
| `--metrics HOST:PORT`, of `broker`, `record`, `tango-source`, `mama-source` | serve Prometheus text at /metrics \
there (extra `prometheus`) |

| exit code | meaning |
|---|---|
"""


def markdown() -> str:
    """The whole page."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items())
    return f"{HEAD}{''.join(_rows(parser(), ''))}{ARGUMENTS}{codes}"


def _rows(command: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    """The commands below ``command``, or the row of ``command`` if it has none: with the last of its examples."""
    below = [a for a in command._actions if isinstance(a, argparse._SubParsersAction)]
    for action in below:
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, each in action.choices.items():
            yield from _rows(each, summaries.get(name, ""))
    if not below:
        assert "--json" in command._option_string_actions, (
            f"{command.prog} takes no --json: change the head of the page"
        )
        text = (command.description or summary).rstrip(".")
        example = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith(" ")][-1]
        yield f"| `{command.prog}`: {text[:1].lower()}{text[1:]} | `{example}` |\n"


def main(words: list[str]) -> int:
    if words == ["--write"]:
        PAGE.write_text(markdown(), encoding="utf-8")
    elif words != ["--check"]:
        print(__doc__)
        return 2
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != markdown():
        print(f"{PAGE} is out of date: run make docs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
