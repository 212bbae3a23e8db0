"""The help of the command: subcommands in groups, examples, colors in a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NoReturn

from ..redaction import redact
from .output import is_terminal


def formatter_class() -> type[argparse.HelpFormatter]:
    """Keeps line breaks of texts; colors in a terminal where rich-argparse is installed."""
    if not is_terminal() or find_spec("rich_argparse") is None:
        return argparse.RawDescriptionHelpFormatter
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        text_markup = help_markup = False  # texts have square brackets of their own

    return Formatter


class HelpParser(argparse.ArgumentParser):
    """A parser that shows no secrets in errors, and its subcommands in groups.

    :ivar groups: title of a group -> its subcommands
    """

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **{"formatter_class": formatter_class(), **more})  # type: ignore[arg-type]
        self.groups: Mapping[str, Sequence[str]] = {}

    def error(self, message: str) -> NoReturn:
        """See the base class; the arguments that it quotes may be URLs."""
        super().error(redact(message))

    def format_help(self) -> str:
        """See the base class."""
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


def examples(lines: Sequence[str]) -> str:
    """The end of the help of a subcommand."""
    return "\n".join(["examples:", *(f"  {line}" for line in lines)]) if lines else ""
