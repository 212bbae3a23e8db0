"""``mama completion SHELL``: prints the completion of commands, options and files."""

from __future__ import annotations

import argparse
import json

from argcomplete.shell_integration import shellcode

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)
    parser.add_argument("--json", action="store_true", help="the program of the shell as one line of JSON")


def run(args: argparse.Namespace) -> int:
    program = shellcode(["mama"], shell=args.shell)
    print(json.dumps({"shell": args.shell, "program": program}) if args.json else program)
    return 0
