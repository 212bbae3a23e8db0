"""The help of the command: subcommands in groups, examples, colors in a terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..contracts.redaction import redact
from ..options.values import nearest
from .exit_codes import SUMMARY
from .output import is_terminal

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

SHOW, USE, DISCOVER, RUN, HELP = (
    "flight logs", "publish and read", "discovery", "servers and recorders", "help"
)  # fmt: skip


class Subcommand(NamedTuple):
    """One subcommand of ``mama``, as ``Subcommand("acme.purge", "remove old topics", package="mama-acme")``.

    :ivar module: module that has its arguments and runs it: ``add_arguments(parser)``, ``run(args) -> int``
    :ivar help: line of ``mama --help``
    :ivar extra: extra of the package that installs what the subcommand needs; empty: none
    :ivar group: heading in ``mama --help``
    :ivar examples: command lines for its own help
    :ivar package: package that has it, as pip names it
    """

    module: str
    help: str
    extra: str = ""
    group: str = RUN
    examples: tuple[str, ...] = ()
    package: str = "mama-spark"


def formatter_class() -> type[argparse.HelpFormatter]:
    """Keeps line breaks of texts; colors in a terminal where rich-argparse is installed."""
    if not is_terminal() or find_spec("rich_argparse") is None:
        return argparse.RawDescriptionHelpFormatter
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        text_markup = help_markup = False  # texts have square brackets of their own

    return Formatter


class HelpParser(argparse.ArgumentParser):
    """A parser that shows no secrets in errors, names the nearest word for a wrong one, and has subcommands in
    ``groups``, by title."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **{"formatter_class": formatter_class(), **more})  # type: ignore[arg-type]
        self.groups: Mapping[str, Sequence[str]] = {}

    def error(self, message: str) -> NoReturn:
        """The arguments that the base class quotes may be URLs."""
        super().error(redact(message))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The arguments; one that a subcommand does not know is its error, with its usage."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            given = (word.partition("=")[0] for word in unknown if word.startswith("-"))
            hints = (nearest(word, self._option_string_actions) for word in given)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, hints), '')}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise argparse.ArgumentError(
                action,
                f"there is no {value!r}{nearest(str(value), action.choices) or f'; {self.prog} --help lists all'}",
            )
        super()._check_value(action, value)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Write the help; a write that fails raises, unlike in the base class."""
        (file or sys.stdout).write(self.format_help())

    def format_help(self) -> str:
        self.description, self.epilog = _wrapped(self.description), _wrapped(self.epilog)
        if not self.groups:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        [commands] = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        choices = {action.dest: action for action in commands._choices_actions}
        for title, names in self.groups.items():
            formatter.start_section(title)
            formatter.add_arguments([choices[name] for name in names])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action is not commands])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def _wrapped(text: str | None) -> str | None:
    """The text, as broad as the terminal, but not narrower than argparse can do; lines that begin with a space are
    command lines, and stay."""
    width = max(11, shutil.get_terminal_size().columns - 2)
    lines = (text or "").splitlines()
    return text and "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in lines)


def examples(lines: Sequence[str]) -> str:
    """The end of the help of a subcommand: command lines, and what its exit code means."""
    return "\n".join(["examples:", *(f"  {line}" for line in lines), "", SUMMARY])
