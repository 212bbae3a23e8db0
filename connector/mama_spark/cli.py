"""Entry point of the command ``mama``; the subcommands are in :mod:`mama_spark.commands`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, Protocol, cast

from . import __version__
from .errors import ConfigError, MamaError
from .redaction import redact

USAGE, INTERRUPTED = 2, 130


class Subcommand(NamedTuple):
    """:ivar extra: of the package, with what the subcommand needs"""

    help: str
    extra: str = ""


class SubcommandModule(Protocol):
    """What a module in :mod:`mama_spark.commands` has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


SUBCOMMANDS = {
    "serve": Subcommand("run a NATS server with JetStream and a demo stream until Ctrl-C", "local"),
    "broker": Subcommand("run a Malamute broker until Ctrl-C", "malamute"),
    "check": Subcommand("try connection, permission, stream and flight log without publishing"),
    "flights": Subcommand("what became of the rows: summary of a flight log"),
    "report": Subcommand("one HTML page that shows what became of the rows: rate, latency, failures, topics", "report"),
    "pub": Subcommand("publish a message, or every line of standard input"),
    "sub": Subcommand("show messages as they are stored, until Ctrl-C"),
    "tango-source": Subcommand("serve the Tango events of a log to Tango clients until Ctrl-C", "tango"),
    "nsd": Subcommand("run a name server for OpenMAMA peers (OZ) until Ctrl-C", "openmama"),
    "record": Subcommand("write the events of Tango devices to a log until Ctrl-C", "tango"),
    "sources": Subcommand("the sources that announce themselves, and what changes, until Ctrl-C"),
    "events": Subcommand("what happens to publishers, topics and readers, until Ctrl-C"),
    "jobs": Subcommand("the programs for spark-submit in this package: list them, or copy one to edit"),
    "docs": Subcommand("generated documentation", "malamute,tango"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """See the base class; the arguments that it quotes may be URLs."""
        super().error(redact(message))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with ``run``, which executes the subcommand.

    :raises ConfigError: what the subcommand needs is not installed
    """
    return parser(argv[:1]).parse_args(argv)


def parser(loaded: Collection[str] = SUBCOMMANDS) -> argparse.ArgumentParser:
    """The parser of all subcommands.

    :param loaded: those whose arguments are needed; the modules of the others are not imported, for a fast start
    :raises ConfigError: what one of these needs is not installed
    """
    top = _Parser(prog="mama", description="Publish DataFrames and know what became of every row.")
    top.add_argument("--version", action="version", version=f"mama-spark {__version__}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, subcommand in SUBCOMMANDS.items():
        one = subparsers.add_parser(name, help=subcommand.help)
        if name in loaded:
            module = _load(name, subcommand.extra)
            module.add_arguments(one)
            one.set_defaults(run=module.run)
    return top


def _load(name: str, extra: str) -> SubcommandModule:
    try:
        module: Any = import_module(f"{__package__}.commands.{name.replace('-', '_')}")
    except ModuleNotFoundError as e:
        package = f"mama-spark[{extra}]" if extra else "mama-spark"
        raise ConfigError(f"mama {name} cannot be loaded ({e}); try: pip install '{package}'") from e
    return cast(SubcommandModule, module)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 2 when something is not fine, with a line that says what; 130 after Ctrl-C."""
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except MamaError as e:
        print(f"mama: {' '.join(str(e).split())}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `mama flights ... | head`: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
