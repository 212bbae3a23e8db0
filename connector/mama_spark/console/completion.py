"""``mama completion SHELL``: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import argparse

import argcomplete
from argcomplete.shell_integration import shellcode

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    print(shellcode(["mama"], shell=args.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, which has asked by environment variables, and end the process."""
    argcomplete.autocomplete(parser)
