"""Entry point of the command ``mama``; the subcommands are in :mod:`mama_spark.cli.commands` and in the middlewares."""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol, cast

from .. import __version__
from ..console.exit_codes import FINE, INTERRUPTED, SUMMARY, WRONG
from ..console.help import DISCOVER, HELP, RUN, SHOW, USE, HelpParser, Subcommand, examples
from ..console.output import discard, print_error
from ..contracts.errors import ConfigError, MamaError
from ..contracts.middlewares import MIDDLEWARES, imported, load_others

logger = logging.getLogger("mama_spark")
#: Errors of writing where there is no room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SubcommandModule(Protocol):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


_OWN = {
    name: Subcommand(f"mama_spark.cli.commands.{name}", *more)
    for name, more in {
        "check": (
            "try connection, permission, stream and flight log without publishing", "", USE,
            ("mama check --conf-file conf/publish.toml", "mama check --url nats://host:4222 -o flightLog=/data/log"),
        ),
        "flights": (
            "summarize a flight log: outcomes, reasons, topics", "", SHOW,
            ("mama flights /data/log", "mama flights sweep /data/log", "mama flights /data/log --failed --limit 5"),
        ),
        "report": (
            "write an HTML page of a flight log: rates, latencies, failures, topics", "report", SHOW,
            ("mama report /data/log --open", "mama report /data/log --since 1h -o today.html"),
        ),
        "audit": (
            "compare a flight log with the streams: is every acknowledged message stored, and once?", "", SHOW,
            ("mama audit /data/log --url nats://host:4222", "mama audit /data/log --run 7f3c --delete-copies"),
        ),
        "pub": (
            "publish a message, or every line of standard input", "", USE,
            ("mama pub demo.orders '{\"id\": 1}'", "mama pub demo.lines -H source=file <lines.txt"),
        ),
        "sub": (
            "show messages as they are stored, until Ctrl-C", "", USE,
            ("mama sub 'demo.>'", "mama sub 'demo.orders.*' --from earliest --count 10 --json"),
        ),
        "record": (
            "write Tango events or OpenMAMA messages to a log until Ctrl-C", "tango", RUN,
            ("mama record tango://host:10000 --device 'lab/*/*' --to nats://host:4222/EVENTS",),
        ),
        "sources": (
            "show announced sources and their changes until Ctrl-C", "", DISCOVER,
            ("mama sources --once", "mama sources --url nats://host:4222 --json"),
        ),
        "top": (
            "show current sources, publishers, readers, streams and rates until q", "top", DISCOVER,
            ("mama top", "mama top mlp://127.0.0.1:9999", "mama top nats://host:4222 --once --json"),
        ),
        "events": (
            "show events of publishers, topics and readers until Ctrl-C", "", DISCOVER,
            ("mama events", "mama events --from earliest --json"),
        ),
        "jobs": (
            "list the spark-submit programs of this package, or copy one to edit", "", USE,
            ("mama jobs", "mama jobs --copy publish"),
        ),
        "docs": (
            "generated documentation", "malamute,tango", HELP, ("mama docs options",),
        ),
        "completion": (
            "print the completion of commands, options and files for a shell", "cli", HELP,
            ("mama completion fish | source", 'eval "$(mama completion zsh)"', 'eval "$(mama completion bash)"'),
        ),
    }.items()
}  # fmt: skip


def _subcommands() -> dict[str, Subcommand]:
    found: dict[str, Subcommand] = {}
    for middleware in MIDDLEWARES.values():
        try:
            found |= {} if middleware.commands is None else imported(middleware.commands)
        except Exception as e:  # noqa: BLE001  whatever the module of another package does
            logger.warning("the subcommands of the middleware %s cannot be used: %s", middleware.name, e)
    return found | _OWN


#: By name, without those that only other packages have: they are looked for where a name is not here.
SUBCOMMANDS = _subcommands()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with ``run``, which executes the subcommand.

    :raises ConfigError: what the subcommand needs is not installed
    """
    return parser(argv[:1]).parse_args(argv)


def parser(loaded: Collection[str] = SUBCOMMANDS) -> argparse.ArgumentParser:
    """The parser of all subcommands.

    :param loaded: subcommands whose arguments are needed; the modules of the others are not imported, for a fast start
    :raises ConfigError: what one of these needs is not installed
    """
    if not SUBCOMMANDS.keys() >= {*loaded}:
        load_others()
        SUBCOMMANDS.update(_subcommands())
    top = HelpParser(
        prog="mama",
        description="Publish DataFrames and know the outcome of every row.",
        epilog=f"mama COMMAND --help shows arguments and examples.\n{SUMMARY}",
    )
    top.add_argument("--version", action="version", version=f"mama-spark {__version__}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, subcommand in SUBCOMMANDS.items():
        one = subparsers.add_parser(
            name,
            help=subcommand.help,
            description=f"{subcommand.help[:1].upper()}{subcommand.help[1:]}.",
            epilog=examples(subcommand.examples),
        )
        if name in loaded:
            module = _load(name, subcommand)
            module.add_arguments(one)
            one.set_defaults(run=module.run)
    top.groups = {
        group: [name for name, subcommand in SUBCOMMANDS.items() if subcommand.group == group]
        for group in (SHOW, USE, DISCOVER, RUN, HELP)
    }
    return top


def _load(name: str, subcommand: Subcommand) -> SubcommandModule:
    with _installed(name):
        return cast(SubcommandModule, import_module(subcommand.module))


@contextmanager
def _installed(name: str) -> Iterator[None]:
    """Context that turns the error of a missing module into one that names the package to install.

    :raises ConfigError: what the subcommand needs is not installed
    """
    try:
        yield
    except ModuleNotFoundError as e:
        subcommand = SUBCOMMANDS[name]
        package = f"{subcommand.package}[{subcommand.extra}]" if subcommand.extra else subcommand.package
        raise ConfigError(f"mama {name} cannot be loaded ({e}); try: pip install '{package}'") from e


def _complete() -> None:
    """Answer the shell, which has the command line in ``COMP_LINE``; this ends the process."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()
    argcomplete.autocomplete(parser([word for word in words[1:2] if word in SUBCOMMANDS]))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that the output's encoding lacks, as JSON escapes them, so that lines of JSON stay JSON."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _make_outputs_usable() -> None:
    """Let nothing that is printed raise because the output is no UTF-8, or was closed by who started the process."""
    codecs.register_error("mama.json", _escaped)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  to the end of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="mama.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: see :mod:`~mama_spark.console.exit_codes`."""
    _make_outputs_usable()
    try:
        try:
            return _run(argv)
        finally:  # also of the help, which ends by an exception
            sys.stdout.flush()
    except BrokenPipeError:  # `mama flights ... | head`: the reader has what it wants
        discard(sys.stdout)
        return FINE
    except OSError as e:
        if e.errno not in _FULL:
            raise
        discard(sys.stdout)
        print_error(f"cannot write: {e.strerror}")
        return WRONG


def _run(argv: Sequence[str] | None) -> int:
    try:
        if "_ARGCOMPLETE" in os.environ:
            _complete()
        words = sys.argv[1:] if argv is None else argv
        if not words:
            parser([]).print_help(sys.stderr)
            raise ConfigError("name a COMMAND, such as mama flights PATH")
        for word in words:
            if not word.isascii() and word != word.encode(errors="replace").decode():  # bytes of no UTF-8
                raise ConfigError(f"the argument {word!r} is no UTF-8")
        args = parse(words)
        with _installed(words[0]):  # also what it imports only when it runs
            code: int = args.run(args)
        return code
    except MamaError as e:
        print_error(" ".join(str(e).split()))
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
