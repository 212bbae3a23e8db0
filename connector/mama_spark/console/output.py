"""Tables and marked words: in colors in a terminal, as plain text in a pipe or a file. ``NO_COLOR`` and ``TERM=dumb``
switch colors off, ``FORCE_COLOR`` on, as everywhere."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

#: Title, names of the columns, rows.
Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]
#: Words of tables whose meaning has a color.
_STYLES = {
    "acked": "green", "ok": "green", "ONLINE": "green", "LIVE": "green", "OK": "green", "true": "green",
    "completed_exceptionally": "red", "timeout": "red", "BAD": "bold red", "OFFLINE": "red", "failed": "red",
    "SUSPECT": "yellow", "STALE": "yellow", "LATE": "yellow", "false": "yellow",
}  # fmt: skip


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether people read this stream, standard output if None: a terminal to draw on, or ``FORCE_COLOR`` is set."""
    if os.environ.get("FORCE_COLOR"):
        return True
    stream = stream or sys.stdout
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def is_rich(stream: TextIO | None = None) -> bool:
    """Whether tables, colors and bars are drawn on this stream: :func:`is_terminal`, and Rich is installed."""
    return is_terminal(stream) and find_spec("rich") is not None


def rich_console(stream: TextIO | None = None) -> Console:
    """Rich's console for a stream; call it where :func:`is_rich` holds."""
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False, soft_wrap=False)


def print_tables(plain: str, tables: Sequence[Table], head: str = "") -> None:
    """Print ``plain``, or in a terminal ``head`` and ``tables``; numbers are aligned to the right, None is ``-``."""
    if not is_rich():
        print(plain)
        return
    console = rich_console()
    if head:
        console.print(head, markup=False)
    for title, names, rows in tables:
        if rows:
            console.print(_table(title, names, rows))


def table_of(title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    return title, names, [[row[name] for name in names] for row in rows]


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(
        title=Text(title, "bold") if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for i, name in enumerate(names):
        numbers = all(isinstance(row[i], int | float | None) and not isinstance(row[i], bool) for row in rows)
        table.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value), _STYLES.get(_cell(value), "")) for value in row))
    return table


def _cell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else _harmless(_text(value))


def printable(value: Any) -> str:
    """A value as one line that cannot steer the terminal: numbers with separators, ``-`` where nothing is known."""
    return _harmless(" ".join(_text(value).split()))


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _harmless(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def print_marked(word: str, text: str) -> None:
    """A line that begins with a word whose meaning has a color."""
    if not is_rich():
        print(f"{word.ljust(3)}  {text}", flush=True)
        return
    from rich.text import Text

    rich_console().print(Text.assemble((word.ljust(3), _STYLES.get(word, "")), "  ", text), soft_wrap=True)


def say_as(as_json: bool) -> Callable[[str], None]:
    """Prints a line at once, of programs that run until they are stopped."""

    def say(text: str) -> None:
        print(json.dumps({"text": text}, ensure_ascii=False) if as_json else text, flush=True)

    return say


def print_error(text: str) -> None:
    """One line on standard error: ``mama: text``. Never raises, in whichever thread: there is nowhere to say it."""
    try:
        if is_rich(sys.stderr):
            from rich.text import Text

            rich_console(sys.stderr).print(Text.assemble(("mama:", "bold red"), " ", text), soft_wrap=True)
        else:
            print(f"mama: {text}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let nothing that is still written to a stream fail, also not at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
