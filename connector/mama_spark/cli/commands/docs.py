"""``mama docs options``: the options of all formats as Markdown, or with the keys of all files as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ...console.help import examples
from ...contracts.errors import ConfigError
from ...contracts.middlewares import MIDDLEWARES
from ...options import markdown
from ...options.document import FileSection, described
from ...registry import part


def files() -> list[FileSection]:
    """The configuration files of all programs.

    :raises ConfigError: what a middleware needs is not installed
    """
    middlewares = [one.name for one in MIDDLEWARES.values() if one.documents is not None]
    return [section for name in middlewares for section in part(name, "documents")()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = parser.add_subparsers(required=True, metavar="WHAT").add_parser(
        "options",
        help="the options of all formats, as Markdown",
        description="The options of all formats, as Markdown.",
        epilog=examples(("mama docs options", "mama docs options --json", "mama docs options --write options.md")),
    )
    way = options.add_mutually_exclusive_group()
    way.add_argument("--write", type=Path, metavar="FILE", help="write them to FILE")
    way.add_argument("--check", type=Path, metavar="FILE", help="fail when FILE is not fresh")
    way.add_argument(
        "--json", action="store_true", help="one line of JSON for each option, and each key of the configuration files"
    )


def run(args: argparse.Namespace) -> int:
    if args.json:
        for fields in described(files()):
            print(json.dumps(fields, ensure_ascii=False))
        return 0
    text = markdown()
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    elif args.check:
        if not args.check.exists() or args.check.read_text(encoding="utf-8") != text:
            raise ConfigError(f"{args.check} is not what the declaration of the options says: run make docs")
    else:
        print(text, end="")
    return 0
